"""Times cuDNN and our variants on a shape, forward and backward, interleaved, with CUDA events.

It takes some ten milliseconds and, for a hidden size never seen on this machine, the seconds of compiling. It draws no
random numbers; the memory of one more layer is needed while it runs. A variant that does not give what cuDNN gives is
not timed: a kernel that a compiler or a new GPU got wrong is never used.
"""

from __future__ import annotations

import importlib
import logging
import math
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hotlap.engine.nn import cuda_walk, nvrtc
from hotlap.engine.nn.candidates import Chip, likely, of_triton
from hotlap.engine.nn.cuda_walk import Sizes
from hotlap.engine.nn.geometry import Variant, parse

if TYPE_CHECKING:
    from hotlap.engine.nn.choosing import Key

log = logging.getLogger("hotlap.engine.nn")
SCREENED, ROUNDS = 2, 7  # times that all are run first, and then those that may win
LONG = 20.0  # milliseconds: what takes longer is measured once, and the clock's noise is small against it
HOPELESS = 1.5  # times the best when screened: not measured again
FINALISTS = 2  # of ours, beside cuDNN
APART = {"float32": 0.02}  # of the largest element, from cuDNN's: rounding is far below, a wrong kernel far above
APART_LOW = 0.1  # bfloat16 and float16
_said: set[str] = set()


def times(key: Key, device: int, only: tuple[str, ...] = ()) -> dict[str, float]:
    """Milliseconds by name, `cudnn` among them; empty where the memory does not suffice. `only`: of these, if any."""
    with (
        torch.cuda.device(device),
        torch.inference_mode(False),
        torch.set_grad_enabled(key.backward),
        torch.autocast("cuda", enabled=False),
    ):
        try:
            layer, x, dy = made(key, f"cuda:{device}")
            runs: dict[str, Callable[[], Any]] = {"cudnn": lambda: by_torch(key, layer, x, dy)}
            for variant in agreeing(key, layer, x, dy, usable(key, device, only)):
                runs[str(variant)] = lambda variant=variant: by_ours(key, layer, x, dy, str(variant))  # type: ignore[misc]
            return interleaved(runs)
        except torch.cuda.OutOfMemoryError:
            log.debug("too little memory to measure %s: cuDNN is used", key.text)
            return {}


def usable(key: Key, device: int, only: tuple[str, ...] = ()) -> list[Variant]:
    """Likely variants, compiled and loaded."""
    properties = torch.cuda.get_device_properties(device)
    chip = Chip(properties.multi_processor_count, (properties.major, properties.minor))
    variants = [parse(one) for one in only] or likely(key.kind, key.hidden, key.batch, key.exact, chip)
    try:
        return compile_all(key.sizes, variants, device)
    except nvrtc.NoCompiler as error:
        _say_once(f"{error}; recurrent layers use Triton's kernels or cuDNN")
        return of_triton(key.hidden) if _has_triton() else []


def compile_all(sizes: Sizes, variants: list[Variant], device: int) -> list[Variant]:
    """Those that can be loaded here; compiled at once on several cores, because NVRTC lets other threads run."""
    nvrtc.library()
    wanted = dict.fromkeys(found for one in variants for found in sizes.kernels(one))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: cuda_walk.binary(one, device), wanted))
    return [one for one in variants if _loads(one, sizes, device)]


def _loads(variant: Variant, sizes: Sizes, device: int) -> bool:
    try:
        cuda_walk.load(variant, sizes, device)
    except RuntimeError as error:
        _say_once(f"{variant} cannot be loaded here: {error}")
        return False
    return True


def interleaved(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """All are screened; the median of several rounds, by turns, of those that may win. What fails is left out."""
    found = _screened(runs)
    best = min(found.values(), default=0.0)
    ours = sorted((one for one in found if one != "cudnn"), key=lambda one: found[one])[:FINALISTS]
    left = [one for one in ("cudnn", *ours) if found.get(one, math.inf) <= min(HOPELESS * best, LONG)]
    if len(left) < 2:
        return found
    clocked: dict[str, list[float]] = {name: [] for name in left}
    for turn in range(ROUNDS):
        for name in left if turn % 2 == 0 else reversed(left):
            clocked[name].append(_timed(runs[name]))
    return {**found, **{name: statistics.median(times) for name, times in clocked.items()}}


def _screened(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The least of a few, after one that only warms up."""
    found: dict[str, float] = {}
    for name, run in runs.items():
        try:
            _timed(run)
            first = _timed(run)
            found[name] = first if first > LONG else min(first, *(_timed(run) for _ in range(SCREENED - 1)))
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 a kernel that cannot be built or launched here must not stop anyone
            _say_once(f"{name} cannot run here: {error}")
    return found


def _timed(run: Callable[[], Any]) -> float:
    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()  # host sync; only while measuring
    return float(begin.elapsed_time(end))


def made(key: Key, device: str) -> tuple[Any, Tensor, Tensor]:
    """A layer of torch.nn's, inputs and gradients of outputs."""
    dtype = getattr(torch, key.dtype)
    kind = torch.nn.LSTM if key.kind == "lstm" else torch.nn.GRU
    where = {"device": device, "dtype": dtype}
    options: dict[str, Any] = {"bias": key.bias, "bidirectional": key.directions == 2, "dtype": dtype}
    layer = kind(key.features, key.hidden, key.layers, device="meta", **options)  # no random numbers are drawn there
    layer = layer.to_empty(device=where["device"])
    with torch.no_grad():
        for one in layer.parameters():
            one.copy_(torch.linspace(-0.1, 0.1, one.numel(), **where).view(one.shape))
    size = key.steps * key.batch
    x = torch.linspace(-1, 1, size * key.features, **where).view(key.steps, key.batch, key.features)
    dy = torch.linspace(-1, 1, size * key.hidden * key.directions, **where).view(key.steps, key.batch, -1)
    return layer, x, dy


def by_torch(key: Key, layer: Any, x: Tensor, dy: Tensor) -> list[Tensor]:
    return _with_gradients(key, layer, layer(x)[0], dy)


def by_ours(key: Key, layer: Any, x: Tensor, dy: Tensor, variant: str) -> list[Tensor]:
    from hotlap.engine.nn.modules import run, shape_of

    return _with_gradients(key, layer, run(layer, x, None, None, shape_of(layer, key.kind, key.exact, variant))[0], dy)


def _with_gradients(key: Key, layer: Any, y: Tensor, dy: Tensor) -> list[Tensor]:
    return [y, *(torch.autograd.grad(y, list(layer.parameters()), dy) if key.backward else ())]


def agreeing(key: Key, layer: Any, x: Tensor, dy: Tensor, variants: list[Variant]) -> list[Variant]:
    """Those whose outputs and gradients are torch.nn's but for rounding. Host sync, once per shape."""
    if not variants:
        return []
    wanted, found = by_torch(key, layer, x, dy), []
    for variant in variants:
        try:
            same = _are_near(key, by_ours(key, layer, x, dy, str(variant)), wanted)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 a kernel that cannot be built or launched here must not stop anyone
            _say_once(f"{variant} cannot run here: {error}")
            continue
        if same:
            found.append(variant)
        else:
            _say_once(f"{variant} gives other results than cuDNN for {key.text} and is not used; please report it")
    return found


def _are_near(key: Key, ours: list[Tensor], theirs: list[Tensor]) -> bool:
    most = APART.get(key.dtype, APART_LOW)
    apart = [(one.float() - other.float()).abs().max() / other.float().abs().max().clamp(min=1e-30)
             for one, other in zip(ours, theirs, strict=True)]  # fmt: skip
    return bool(torch.stack(apart).max() <= most)  # not where one is NaN


def _has_triton() -> bool:
    try:
        importlib.import_module("triton")
    except ImportError:
        _say_once("Triton is not installed; recurrent layers use cuDNN")
        return False
    return True


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        log.warning("%s", text)
