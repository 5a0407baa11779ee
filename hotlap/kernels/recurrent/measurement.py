"""Time cuDNN and our variants on a shape, forward and backward, interleaved, with CUDA events.

It takes some ten milliseconds and, for a hidden size never seen on this machine, the seconds of compiling. The memory
of one more layer is needed while it runs. A variant that does not compute what torch.nn does is not timed. If the host
is slower than the device, all of ours take the same time, but not in a CUDA graph: then the device's time decides among
them.
"""

from __future__ import annotations

import logging
import math
import statistics
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hotlap.kernels.cuda import nvrtc
from hotlap.kernels.recurrent import cuda_recurrence
from hotlap.kernels.recurrent.agreement import agreeing, say_once
from hotlap.kernels.recurrent.candidates import Chip, likely
from hotlap.kernels.recurrent.cuda_recurrence import Sizes
from hotlap.kernels.recurrent.geometry import Variant, parse
from hotlap.kernels.recurrent.probe import by_ours, by_torch, made

if TYPE_CHECKING:
    from hotlap.kernels.recurrent.key import Key

log = logging.getLogger("hotlap.kernels")
SCREENED, ROUNDS = 2, 7  # rounds in which all are run first, and then those that may win
LONG = 20.0  # milliseconds: what takes longer is measured once, since the clock's noise is small beside it
HOPELESS = 1.5  # times the best in the screening: not measured again
ALIKE = 1.3  # times the best of ours in the screening: the device's time decides
STATES_AT_MOST, STEPS_AT_LEAST = 2**27, 16  # of one layer: a longer sequence takes proportionally longer either way
HELD_BACK = 4_000_000  # cycles, some 2 ms, in which the host gives the device all that is timed


def times(key: Key, device: int, only: tuple[str, ...] = ()) -> dict[str, float]:
    """Return milliseconds by name, `cudnn` among them; empty if memory does not suffice. `only`: these, if any."""
    key = shortened(key)
    with (
        torch.cuda.device(device),
        torch.inference_mode(False),
        torch.set_grad_enabled(key.backward),
        torch.autocast("cuda", enabled=False),
        _syncs_allowed(),
    ):
        try:
            layer, x, dy = made(key, f"cuda:{device}")
            runs: dict[str, Callable[[], Any]] = {"cudnn": lambda: by_torch(key, layer, x, dy)}
            for variant in agreeing(key, layer, x, dy, usable(key, device, only)):
                runs[str(variant)] = lambda variant=variant: by_ours(key, layer, x, dy, str(variant))  # type: ignore[misc]
            return interleaved(runs)
        except torch.cuda.OutOfMemoryError:
            log.debug("too little memory to measure %s: using cuDNN", key.text)
            return {}


def shortened(key: Key) -> Key:
    """Return a key with fewer steps if measuring would take seconds and tens of gigabytes."""
    most = STATES_AT_MOST // (key.batch * key.hidden * key.directions)
    return replace(key, steps=min(key.steps, max(most, STEPS_AT_LEAST)))


@contextmanager
def _syncs_allowed() -> Iterator[None]:
    """Allow host syncs, even if the first call is a rehearsal of a capture, in which a program's syncs are errors."""
    before = torch.cuda.get_sync_debug_mode()
    if before == 0:
        yield
        return
    with warnings.catch_warnings():  # torch warns once that this is a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(0)
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def usable(key: Key, device: int, only: tuple[str, ...] = ()) -> list[Variant]:
    """Return the likely variants, compiled and loaded."""
    variants = [parse(name) for name in only] or _likely(key, device)
    try:
        return compile_all(key.sizes, variants, device)
    except nvrtc.NoCompiler as error:
        say_once(f"{error}; recurrent layers use cuDNN")
        return []


def _likely(key: Key, device: int) -> list[Variant]:
    properties = torch.cuda.get_device_properties(device)
    chip = Chip(properties.multi_processor_count, (properties.major, properties.minor))
    return likely(key.kind, key.hidden, key.batch, key.exact, chip)


def compilations(key: Key, device: int) -> list[Callable[[], object]]:
    """Return jobs that compile the kernels of the likely variants, for `usable` to find them on disk."""
    wanted = dict.fromkeys(found for variant in _likely(key, device) for found in key.sizes.kernels(variant))
    return [partial(cuda_recurrence.binary, found, device) for found in wanted]


def compile_all(sizes: Sizes, variants: list[Variant], device: int) -> list[Variant]:
    """Return those that can be loaded here; compiled on several cores at once, because NVRTC lets other threads run."""
    nvrtc.library()
    wanted = dict.fromkeys(found for variant in variants for found in sizes.kernels(variant))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda kernel_layout: cuda_recurrence.binary(kernel_layout, device), wanted))
    return [variant for variant in variants if _loads(variant, sizes, device)]


def _loads(variant: Variant, sizes: Sizes, device: int) -> bool:
    try:
        cuda_recurrence.load(variant, sizes, device)
    except RuntimeError as error:
        say_once(f"{variant} cannot be loaded here: {error}")
        return False
    return True


def interleaved(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Screen all, then return the median of several rounds, by turns, of cuDNN and the best of ours. What fails, and
    what is alike but slower on the device, is left out.
    """
    found = _screened(runs)
    best, slower = min(found.values(), default=0.0), _alike(runs, found)[1:]
    found = {name: took for name, took in found.items() if name not in slower}
    ours = sorted((name for name in found if name != "cudnn"), key=lambda name: found[name])[:1]
    left = [name for name in ("cudnn", *ours) if found.get(name, math.inf) <= min(HOPELESS * best, LONG)]
    if len(left) < 2:
        return found
    clocked: dict[str, list[float]] = {name: [] for name in left}
    for turn in range(ROUNDS):
        for name in left if turn % 2 == 0 else reversed(left):
            clocked[name].append(_timed(runs[name]))
    return {**found, **{name: statistics.median(times) for name, times in clocked.items()}}


def _alike(runs: dict[str, Callable[[], Any]], found: dict[str, float]) -> list[str]:
    """Return those of ours that are about as fast as the best of them, the fastest on the device first."""
    ours = {name: took for name, took in found.items() if name != "cudnn"}
    alike = [name for name, took in ours.items() if took <= min(ALIKE * min(ours.values()), LONG)]
    if len(alike) < 2:
        return alike
    times = {name: min(_on_device(runs[name]) for _ in range(SCREENED + 1)) for name in alike}
    log.debug("on the device: %s", ", ".join(f"{name} {1e3 * took:.0f} µs" for name, took in times.items()))
    return sorted(alike, key=lambda name: times[name])


def _screened(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the least of a few times, after one run that only warms up."""
    found: dict[str, float] = {}
    for name, run in runs.items():
        try:
            _timed(run)
            first = _timed(run)
            found[name] = first if first > LONG else min(first, *(_timed(run) for _ in range(SCREENED - 1)))
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 a kernel that cannot be built or launched here must not stop anyone
            say_once(f"{name} cannot run here: {error}")
    return found


def _on_device(run: Callable[[], Any]) -> float:
    """Time the device without the host, whose time passes while the device is held back."""
    return _timed(run, HELD_BACK)


def _timed(run: Callable[[], Any], held_back: int = 0) -> float:
    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    if held_back:
        hold: Any = torch.cuda._sleep
        hold(held_back)
    begin.record()
    run()
    end.record()
    end.synchronize()  # host sync; only while measuring
    return float(begin.elapsed_time(end))
