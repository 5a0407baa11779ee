"""hotlap's recurrent layers against cuDNN, forward + backward, in one process and interleaved.

`python benchmarks/recurrent.py --out FILE`            all 1350 shapes, in an order whose every part is representative
`python benchmarks/recurrent.py --quick --out FILE`    38 shapes: those of the reports with one layer, and larger ones
`python benchmarks/recurrent.py --sweep --out FILE`    every variant at 24 shapes, beside its estimate

`--seconds N` ends after N seconds; `--resume` goes on with FILE. `--graphs` times replays of CUDA graphs: the device's
time without the host's. `--compile` only compiles the kernels that will be tried, for the next run. The file is written
as it goes, holds every sample, and has its summary also when the run is interrupted. Errors are those of outputs and
weight gradients against torch.nn in float64 on the same device, at up to 32 rows; memory is the peak above what was
allocated before.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from recurrent_cases import Case, Place, Point, grid, measured, quick, spread

from hotlap.engine.nn import candidates, choosing, cuda_walk, measuring
from hotlap.engine.nn.geometry import Variant, layout

SECONDS_UNWRITTEN = 2.0
HEAD = (
    f"{'shape':28} {'cuDNN ms':>8} {'ours ms':>8} {'faster':>7} {'floor':>6} {'error':>6} {'memory':>6}  "
    "what the layer chose (the best of ours beside cuDNN when it chose)"
)


def prepare(points: list[Point], place: Place) -> float:
    """All kernels of the grid compiled on all cores at once; seconds it took."""
    if not place.cuda:
        return 0.0
    begin = time.perf_counter()
    wanted: dict[Any, None] = {}
    for point in points:
        for variant in candidates.likely(point.kind, point.hidden, point.batch, False, chip()):
            wanted |= dict.fromkeys(sizes(point).kernels(variant))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: cuda_walk.binary(one, torch.cuda.current_device()), wanted))
    return time.perf_counter() - begin


def sizes(point: Point) -> cuda_walk.Sizes:
    return cuda_walk.Sizes(point.kind, point.hidden, False, point.features, point.layers)


def chip() -> candidates.Chip:
    if not torch.cuda.is_available():
        return candidates.Chip(132, (9, 0))
    properties = torch.cuda.get_device_properties(0)
    return candidates.Chip(properties.multi_processor_count, (properties.major, properties.minor))


class Record:
    """The file, rewritten whole now and then."""

    def __init__(self, path: Path, place: Place, resume: bool) -> None:
        self.path, self.written = path, 0.0
        about = {**place.about(), "command": " ".join(sys.argv), "date": datetime.now(timezone.utc).isoformat()}
        self.content: dict[str, Any] = {"about": about, "points": []}
        if resume and path.exists():
            self.content = json.loads(path.read_text(encoding="utf-8"))

    @property
    def done(self) -> set[str]:
        return {one["name"] for one in self.content["points"]}

    def add(self, result: dict[str, Any]) -> None:
        self.content["points"].append(result)
        if time.perf_counter() - self.written > SECONDS_UNWRITTEN:
            self.write()

    def write(self) -> None:
        self.written = time.perf_counter()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.content, indent=1), encoding="utf-8")
        partial.replace(self.path)


@contextmanager
def memory_suffices(name: str) -> Iterator[None]:
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        print(f"{name}: too little memory", flush=True)


def run_points(points: list[Point], options: argparse.Namespace, place: Place, record: Record) -> None:
    begin = time.perf_counter()
    choosing.MEASURED_AT_MOST = len(points)  # a program has fewer shapes
    print(f"compiled in {prepare(points, place):.1f} s\n{HEAD}", flush=True)
    for point in points:
        if point.name in record.done:
            continue
        if time.perf_counter() - begin > options.seconds:
            print(f"ended after {options.seconds} s with {len(record.done)} of {len(points)} shapes")
            break
        with memory_suffices(point.name):
            result = measured(point, place, options.graphs)
            record.add(result)
            print(line(point, result), flush=True)
        place.tidy()
    record.write()


def line(point: Point, result: dict[str, Any]) -> str:
    times = {name: statistics.median(values) for name, values in result["ms"].items()}
    memory, off, tried = result["bytes"], result["error"], result["tried_ms"]
    ours = sorted((took, name) for name, took in tried.items() if name != "cudnn")
    best = f" ({ours[0][1]} {ours[0][0]:.3f}, cuDNN {tried['cudnn']:.3f})" if ours and "cudnn" in tried else ""
    return (
        f"{point.name:28} {times['cudnn']:8.3f} {times['ours']:8.3f} {result['speedup']:6.2f}× {point.floor_ms:6.3f} "
        f"{off['ours'] / max(off['cudnn'], 1e-30):5.2f}× {memory['ours'] / max(memory['cudnn'], 1):5.2f}×  "
        f"{result['variant']}{best}"
    )


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    def mean(chosen: list[dict[str, Any]]) -> float | None:
        logs = [math.log(one["speedup"]) for one in chosen]
        return math.exp(statistics.fmean(logs)) if logs else None

    groups = {"all": mean(results), "reports": mean([one for one in results if Point(**one["point"]).of_the_reports])}
    for name in ("kind", "batch", "steps", "hidden", "layers", "features"):
        for value in sorted({one["point"][name] for one in results}, key=str):
            groups[f"{name} {value}"] = mean([one for one in results if one["point"][name] == value])
    slower = [one["name"] for one in results if one["speedup"] < 0.97]
    memory = {one["name"]: one["bytes"]["ours"] / max(1, one["bytes"]["cudnn"]) for one in results}
    errors = {one["name"]: one["error"]["ours"] / max(1e-30, one["error"]["cudnn"]) for one in results}
    return {
        "geometric_mean_speedup": groups,
        "shapes": len(results),
        "by_cudnn": sum(one["variant"] == "cudnn" for one in results),
        "slower_than_cudnn": slower,
        "memory_above_1.2": {name: ratio for name, ratio in memory.items() if ratio > 1.2},
        "error_above_cudnn": {name: ratio for name, ratio in errors.items() if ratio > 1.05},
    }


def tell(found: dict[str, Any]) -> None:
    for name, value in found["geometric_mean_speedup"].items():
        print(f"{name:14} {'-' if value is None else f'{value:5.2f}×'}")
    for name in ("slower_than_cudnn", "memory_above_1.2", "error_above_cudnn"):
        print(f"{name}: {len(found[name])} of {found['shapes']}")
    print(f"left to cuDNN: {found['by_cudnn']} of {found['shapes']}")


# Sweep


def every_variant(point: Point) -> list[Variant]:
    """All that fit, whatever their estimate; Triton's with several numbers of warps."""
    cuda = [
        Variant("cuda", product, rows, cluster, blocks, finer)
        for product, all_rows in (("fma", candidates.FMA_ROWS), ("mma", candidates.MMA_ROWS))
        for rows in all_rows
        for cluster in candidates.CLUSTERS
        for blocks, finer in ((1, 1), (2, 1), (1, 2))
    ]
    fitting = [
        one for one in cuda if all(layout(point.kind, point.hidden, one, back, False) is not None for back in (0, 1))
    ]
    sensible = [one for one in fitting if one.rows <= max(8, point.batch * one.cluster // 32)]
    triton = [
        Variant("triton", "fma" if rows < 16 else "dot", rows, blocks=warps) for rows in (1, 16) for warps in (4, 8)
    ]
    return [*sensible, *(triton if point.hidden <= 64 else [])]


def estimated(point: Point, variant: Variant) -> float:
    if variant.engine != "cuda":
        return math.nan
    pair = [layout(point.kind, point.hidden, variant, back, False) for back in (False, True)]
    return sum(candidates.estimate(one, point.batch, chip()) for one in pair if one is not None)


def sweep(points: list[Point], options: argparse.Namespace, place: Place, record: Record) -> None:
    begin = time.perf_counter()
    for point in points:
        if point.name in record.done or time.perf_counter() - begin > options.seconds:
            continue
        variants = sorted(every_variant(point), key=lambda one: estimated(point, one)) if place.cuda else []
        variants = variants[: options.variants]
        if place.cuda:
            usable = [one for one in variants if one.engine == "cuda"]
            loaded = measuring.compile_all(sizes(point), usable, torch.cuda.current_device())
            variants = [one for one in variants if one.engine != "cuda" or one in loaded]
        case = Case(point, place)
        ways = ["cudnn", *(str(one) for one in variants)] if place.cuda else ["cudnn", "torch"]
        times = (
            measuring.interleaved({way: case.by(way) for way in ways}) if place.cuda else cpu_times(case, ways, place)
        )
        expected = {str(one): estimated(point, one) for one in variants}
        record.add({"point": asdict(point), "name": point.name, "ms": times, "estimate": expected})
        print(f"{point.name}  cuDNN {times['cudnn']:.3f} ms")
        for way in sorted(times, key=lambda one: times[one]):
            print(
                f"    {way:24} {times[way]:8.3f} ms  {times['cudnn'] / times[way]:5.2f}×  {expected.get(way, 0):8.0f}"
            )
        sys.stdout.flush()
        del case
        place.tidy()
    record.write()


def cpu_times(case: Case, ways: list[str], place: Place) -> dict[str, float]:
    return {way: place.timed(case.by(way)) for way in ways}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--graphs", action="store_true", help="time replays of CUDA graphs")
    parser.add_argument("--compile", action="store_true", help="only compile what will be tried")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--variants", type=int, default=24, help="of a sweep, likeliest first")
    parser.add_argument("--shapes", type=int, help="only the first so many")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the script out")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU is there; --device cpu tries the script out")
    if options.graphs and options.device == "cpu":
        parser.error("--graphs needs a GPU")
    if options.out is None and not options.compile:
        parser.error("--out FILE says where the result goes")
    place = Place(options.device)
    points = (quick() if options.quick else spread() if options.sweep else grid())[: options.shapes]
    if options.compile:
        print(f"compiled in {prepare(points, place):.1f} s")
        return
    record = Record(options.out, place, options.resume)
    if options.sweep:
        sweep(points, options, place, record)
        return
    try:
        run_points(points, options, place, record)
    except KeyboardInterrupt:
        print(f"interrupted after {len(record.done)} of {len(points)} shapes")
    finally:
        record.content["summary"] = summary(record.content["points"])
        record.write()
        tell(record.content["summary"])


if __name__ == "__main__":
    main()
