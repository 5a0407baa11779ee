"""Which way a layer of this shape is run: cuDNN's or one of ours, measured once and remembered.

Choices are remembered in the process and on disk, by GPU, torch and the content of the kernels and of the code that
chooses. Nothing is measured while a CUDA graph is captured or Dynamo compiles: then the remembered choice is used, or
cuDNN.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hotlap.kernels.cuda.folder import cache_folder, written
from hotlap.kernels.recurrent import cuda_recurrence, measurement
from hotlap.kernels.recurrent.geometry import parse
from hotlap.kernels.recurrent.key import Key

log = logging.getLogger("hotlap.kernels")
CUDNN = "cudnn"
CHOOSERS = (
    "candidates.py", "geometry.py", "probe.py", "agreement.py", "measurement.py", "plans.py", "direct.py",
)  # fmt: skip
MEASURED_AT_MOST = 64  # shapes per process; data whose length changes with every batch would be measured forever


_known: dict[tuple[Key, int], str] = {}
clocked: dict[tuple[Key, int], dict[str, float]] = {}  # milliseconds that this process measured, for benchmarks
HOST_MS, OF_THE_HOST, OF_THE_DEVICE = 1.5, 0.08, 0.03  # below so many milliseconds the host's noise counts
ways: dict[tuple[Any, ...], Any] = {}  # what modules.py made of a choice, by everything it depends on
WAYS_AT_MOST = 4096
_measured = 0
_forced: str | None = None


@contextmanager
def forced(variant: str) -> Iterator[None]:
    """Run all layers by this variant, or by cudnn, on any device; for benchmarks and tests."""
    global _forced
    if variant != CUDNN:
        parse(variant)
    before, _forced = _forced, variant
    try:
        yield
    finally:
        _forced = before


def choice(key: Key, device: torch.device) -> str:
    """Return the variant for this shape, or cudnn."""
    return _forced or _choice(key, device)


def remembered(device: int, *traits: str | int) -> str:
    """Return the known choice for a Key of these traits without measuring, or cudnn. Dynamo passes no dataclass."""
    if _forced is not None:
        return _forced
    key = Key(*traits)  # type: ignore[arg-type]
    return _known.get((key, device)) or stored(device).get(key.text) or CUDNN


# What torch.compiler.assume_constant_result sets; itself it imports Dynamo, which takes seconds.
remembered._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_forced() -> bool:
    return _forced is not None


def forced_name() -> str | None:
    return _forced


def is_settled(found: tuple[str | int, ...], device: torch.device) -> bool:
    """Return whether the choice for a Key of these traits is final in this process, unless another is forced."""
    return _forced is not None or (Key(*found), index_of(device)) in _known  # type: ignore[arg-type]


def remember(quick: tuple[Any, ...], way: Any) -> None:
    if len(ways) >= WAYS_AT_MOST:  # lengths that never repeat
        ways.clear()
    ways[quick] = way


def index_of(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _choice(key: Key, device: torch.device) -> str:
    global _measured
    index = index_of(device)
    name = _known.get((key, index))
    if name is not None:
        return name
    if torch.cuda.is_current_stream_capturing():
        return _ready(key, index)
    name = stored(index).get(key.text)
    if name is not None and _loaded(name, key, index):
        _known[key, index] = name
        return name
    if _measured >= MEASURED_AT_MOST:
        _known[key, index] = CUDNN
        return CUDNN
    _measured += 1
    winners = alike(key, index)
    times = measurement.times(key, index, winners)
    name = fastest(times)
    if winners and name == CUDNN:  # what won elsewhere does not here: one of the rest may
        times = measurement.times(key, index)
        name = fastest(times)
    _known[key, index], clocked[key, index] = name, times
    _keep(index, key, name)
    log.debug(
        "%s: %s (%s)", key.text, name, ", ".join(f"{variant} {1e3 * took:.0f} µs" for variant, took in times.items())
    )
    return name


def compilations(key: Key, device: torch.device) -> list[Callable[[], object]]:
    """Return jobs that compile what a choice for this shape will load; none for one whose choice is remembered."""
    index = index_of(device)
    if is_forced() or (key, index) in _known or key.text in stored(index):
        return []
    return measurement.compilations(key, index)


def alike(key: Key, device: int) -> tuple[str, ...]:
    """Return what won for the same layer width and batch at other lengths: only that is then measured against cuDNN."""
    same = ("kind", "batch", "hidden", "directions", "dtype", "exact", "backward")
    names = {
        name: None
        for (known_key, index), name in _known.items()
        if index == device
        and name.startswith("cuda")
        and all(getattr(known_key, trait) == getattr(key, trait) for trait in same)
    }
    return tuple(names)


def fastest(times: dict[str, float]) -> str:
    """Return ours only if it is faster by more than the clock's noise; cuDNN if nothing was measured."""
    ours = {name: took for name, took in times.items() if name != CUDNN}
    if not ours or CUDNN not in times:
        return CUDNN
    best = min(ours, key=lambda name: ours[name])
    margin = OF_THE_HOST if times[CUDNN] < HOST_MS else OF_THE_DEVICE
    return best if ours[best] < (1 - margin) * times[CUDNN] else CUDNN


def _ready(key: Key, index: int) -> str:
    """Return a choice whose kernels are loaded, or cudnn: while a graph is captured nothing can be loaded."""
    name = stored(index).get(key.text, CUDNN)
    if name.startswith("cuda") and cuda_recurrence.is_ready(parse(name), key.sizes, index):
        return name
    return CUDNN


def _loaded(name: str, key: Key, index: int) -> bool:
    """Return whether a remembered choice can be run here."""
    if not name.startswith("cuda"):
        return True
    try:
        cuda_recurrence.load(parse(name), key.sizes, index)
    except (RuntimeError, ValueError) as error:
        log.debug("%s cannot be loaded: %s", name, error)
        return False
    return True


# On disk


def file_of(device: int) -> Path:
    name = re.sub(r"[^A-Za-z0-9]+", "-", torch.cuda.get_device_name(device))
    choosers = "".join((cuda_recurrence.HERE / name).read_text(encoding="utf-8") for name in CHOOSERS)
    version = hashlib.sha256((cuda_recurrence.source() + choosers).encode()).hexdigest()[:12]
    return cache_folder() / f"choices-{name}-{torch.__version__}-{version}.json"


@cache
def stored(device: int) -> dict[str, str]:
    return read(file_of(device))


def read(path: Path) -> dict[str, str]:
    """Read the choices; none if the file is missing or torn. Names unknown here are left out."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    pairs = content.items() if isinstance(content, dict) else ()
    return {key: name for key, name in pairs if isinstance(name, str) and _is_a_name(name)}


def _is_a_name(name: str) -> bool:
    if name == CUDNN:
        return True
    try:
        parse(name)
    except ValueError:
        return False
    return True


def _keep(device: int, key: Key, name: str) -> None:
    """Write a choice together with what other processes have written meanwhile; of two at once the last wins."""
    stored(device)[key.text] = name
    path = file_of(device)
    merged = {**read(path), key.text: name}
    written(path, json.dumps(merged, indent=0, sort_keys=True).encode())


def forget() -> None:
    """Forget what the process remembers; the disk keeps its own."""
    global _measured
    _known.clear()
    ways.clear()
    clocked.clear()
    stored.cache_clear()
    _measured = 0
