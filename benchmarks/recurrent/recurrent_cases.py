"""The shapes at which recurrent layers are compared, and what is measured for each: see recurrent.py."""

from __future__ import annotations

import gc
import itertools
import math
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch

from hotlap.engine import nn as ours
from hotlap.kernels.recurrent import measurement, modules, selection
from hotlap.kernels.recurrent.key import Key

GRID = {"batch": (32, 200, 512, 2048, 8192), "steps": (50, 150, 400), "hidden": (10, 16, 64, 128, 256)}
REPORTS = {"batch": (200, 512), "steps": (150, 400), "hidden": (10, 16, 64, 128)}
FLOOR_US = 0.45  # of one step of one layer in one pass: the latency of a weight-stationary kernel
ROUNDS, LONG_MS = 5, 40.0
ERROR_ROWS = 32


@dataclass(frozen=True)
class Point:
    kind: str
    batch: int
    steps: int
    hidden: int
    layers: int
    features: int

    @property
    def name(self) -> str:
        return f"{self.kind} B{self.batch} T{self.steps} H{self.hidden} L{self.layers} I{self.features}"

    @property
    def of_the_reports(self) -> bool:
        return all(getattr(self, name) in values for name, values in REPORTS.items())

    @property
    def floor_ms(self) -> float:
        return 2 * self.steps * self.layers * FLOOR_US / 1e3


def grid() -> list[Point]:
    """Return some of every kind first, then the reports' shapes and all others by turns, each in random order."""
    points, first = whole(), spread()
    random.Random(8).shuffle(points)
    later = [point for point in points if point not in first]
    reports, others = ([point for point in later if point.of_the_reports == wanted] for wanted in (True, False))
    turns = itertools.zip_longest(reports, others)
    return [*first, *(point for pair in turns for point in pair if point is not None)]


def whole() -> list[Point]:
    shapes = itertools.product(*GRID.values(), (1, 2, 3), (3, 8, 64))
    return [Point(kind, *shape) for shape in shapes for kind in ("lstm", "gru")]


def spread() -> list[Point]:
    shapes = [
        (200, 400, 16, 1, 3), (200, 400, 64, 1, 3), (200, 400, 128, 1, 3), (512, 150, 64, 2, 8), (512, 400, 128, 2, 8),
        (512, 150, 10, 1, 8), (32, 150, 64, 1, 8), (32, 50, 256, 2, 64), (2048, 400, 64, 2, 8), (8192, 150, 64, 1, 8),
        (2048, 150, 128, 1, 64), (200, 150, 256, 3, 64),
    ]  # fmt: skip
    return [Point(kind, *shape) for shape in shapes for kind in ("lstm", "gru")]


def quick() -> list[Point]:
    """Return the reports' shapes with one layer each, and three larger ones; every width comes early."""
    small = [
        (batch, steps, hidden, 1, 3)
        for batch, steps in ((200, 400), (512, 150), (200, 150), (512, 400))
        for hidden in (64, 16, 128, 10)
    ]
    large = [(2048, 150, 64, 1, 8), (8192, 150, 64, 1, 8), (128, 200, 256, 3, 64)]
    return [Point(kind, *shape) for shape in (*small[:8], *large, *small[8:]) for kind in ("lstm", "gru")]


# Where it runs


class Place:
    """A GPU, or the CPU to try the script out: there ours is the same algorithm in plain torch."""

    def __init__(self, device: str) -> None:
        self.device, self.cuda = device, device == "cuda"

    def timed(self, run: Callable[[], Any]) -> float:
        """Milliseconds."""
        if not self.cuda:
            begin = time.perf_counter()
            run()
            return 1e3 * (time.perf_counter() - begin)
        return measurement._timed(run)

    def peak(self, run: Callable[[], Any]) -> int:
        if not self.cuda:
            run()
            return 0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def captured(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Return the same work as a CUDA graph."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = run()
        return lambda: (graph.replay(), outputs)

    def tidy(self) -> None:
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    def about(self) -> dict[str, Any]:
        about = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
        if self.cuda:
            about |= {"gpu": torch.cuda.get_device_name(), "cudnn": torch.backends.cudnn.version()}
        return about


# One shape


class Case:
    def __init__(self, point: Point, place: Place, batch: int | None = None) -> None:
        self.point, self.place = point, place
        torch.manual_seed(0)
        kind = ours.LSTM if point.kind == "lstm" else ours.GRU
        self.layer = kind(point.features, point.hidden, point.layers).to(place.device)
        rows = batch or point.batch
        self.x = torch.randn(point.steps, rows, point.features, device=place.device)
        self.dy = torch.randn(point.steps, rows, point.hidden, device=place.device)
        self.weights = list(self.layer.parameters())

    def run(self) -> tuple[Any, ...]:
        y = self.layer(self.x)[0]
        return (y.detach(), *torch.autograd.grad(y, self.weights, self.dy))

    def by(self, way: str | None) -> Callable[[], tuple[Any, ...]]:
        """Return the work by one way; with None the layer chooses."""

        def run() -> tuple[Any, ...]:
            with nullcontext() if way is None else selection.forced(way):
                return self.run()

        return run

    def chosen(self) -> tuple[str, dict[str, float]]:
        """Return what the layer uses for this shape, and the milliseconds of all it tried; none if it was known."""
        if not self.place.cuda:
            return selection.CUDNN, {}
        exact = modules.is_exact(self.layer)
        key = Key(*modules.traits(self.layer, self.point.kind, self.x, exact, None))
        name = selection.choice(key, self.x.device)
        return name, selection.clocked.get((key, self.x.device.index), {})

    def in_float64(self) -> tuple[Any, ...]:
        kind = torch.nn.LSTM if self.point.kind == "lstm" else torch.nn.GRU
        layer = kind(self.point.features, self.point.hidden, self.point.layers).to(self.x.device).double()
        layer.load_state_dict(self.layer.state_dict())
        y = layer(self.x.double())[0]
        return (y.detach(), *torch.autograd.grad(y, list(layer.parameters()), self.dy.double()))


def error(found: Iterable[Any], exact: Iterable[Any]) -> float:
    """Return the largest error of all outputs and gradients, each relative to its own size."""
    pairs = zip(found, exact, strict=True)
    return max(float((tensor.double() - right).norm() / right.norm().clamp(min=1e-30)) for tensor, right in pairs)


def measured(point: Point, place: Place, graphs: bool, seconds: float = math.inf) -> dict[str, Any]:
    """Measure a shape; no round but the first begins after so many seconds of timing."""
    case = Case(point, place)
    variant, tried = case.chosen()
    ways = {"cudnn": case.by("cudnn"), "ours": case.by("cudnn" if variant == "cudnn" else variant)}
    memory = {name: peak_of(name, place, run) for name, run in ways.items()}
    runs = {name: place.captured(run) for name, run in ways.items()} if graphs else ways
    times = interleaved(place, runs, warm=graphs, seconds=seconds)
    result = {"point": asdict(point), "name": point.name, "variant": variant, "ms": times, "bytes": memory}
    result["tried_ms"] = tried
    result["speedup"] = statistics.median(times["cudnn"]) / statistics.median(times["ours"])
    del case, ways, runs
    small = Case(point, place, min(point.batch, ERROR_ROWS))
    exact = small.in_float64()
    result["error"] = {name: error(small.by(way)(), exact) for name, way in (("cudnn", "cudnn"), ("ours", variant))}
    return result


def peak_of(name: str, place: Place, run: Callable[[], Any]) -> int:
    """Return the peak of memory; an error says whose it is."""
    try:
        return place.peak(run)
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise RuntimeError(f"by {name}: {str(error).splitlines()[0]}") from error


def interleaved(
    place: Place, runs: dict[str, Callable[[], Any]], warm: bool, seconds: float
) -> dict[str, list[float]]:  # fmt: skip
    """warm: they have not run before."""
    for run in runs.values() if warm else ():
        place.timed(run)
    begin, times = time.perf_counter(), {name: list[float]() for name in runs}
    for turn in range(ROUNDS):
        for name in list(runs) if turn % 2 == 0 else list(runs)[::-1]:
            times[name].append(place.timed(runs[name]))
        slow = turn >= 1 and min(map(min, times.values())) > LONG_MS
        if slow or time.perf_counter() - begin > seconds:
            break
    return times
