"""hotlap's recurrent layers against cuDNN, forward + backward, in one process and interleaved.

`python benchmarks/recurrent/recurrent.py --out FILE`          all 1350 shapes, the reports' first
`python benchmarks/recurrent/recurrent.py --quick --out FILE`  38 shapes: of the reports, and larger ones
`python benchmarks/recurrent/recurrent.py --sweep --out FILE`  every variant at 24 shapes, beside its estimate

In several calls: `--part 2/3` is the second third of the shapes, as mixed as all, `--hidden 10,16 --features 3` are
those with so many, `--seconds N` ends a call after N seconds, `--resume` goes on with FILE, and `--merge PART PART…
--out FILE` makes one file of several, without a GPU: of a shape measured twice the first counts. A shape is timed for
`--shape-seconds` at most, and at least once. The file holds every sample and is written after each shape: a run that is
killed loses the one it was at. A shape that cannot be run ends the call and is left out by the next.

`--graphs` times replays of CUDA graphs: the device's time without the host's. `--compile` only compiles the kernels
that will be tried, for the next run. Errors are those of outputs and weight gradients against torch.nn in float64 on
the same device, at up to 32 rows; memory is the peak above what was allocated before.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import signal
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
from recurrent_cases import Case, Place, Point, grid, measured, quick, spread, whole

from hotlap.kernels.recurrent import candidates, cuda_recurrence, measurement, selection
from hotlap.kernels.recurrent.geometry import Variant, layout

ROWS = {"fma": candidates.FMA_ROWS, "mma": candidates.MMA_ROWS, "tile": candidates.TILE_ROWS}
HEAD = (
    f"{'shape':28} {'cuDNN ms':>8} {'ours ms':>8} {'faster':>7} {'floor':>6} {'error':>6} {'memory':>6}  "
    "what the layer chose (the best of ours beside cuDNN when it chose)"
)


def prepare(points: list[Point], place: Place) -> float:
    """Compile all kernels of the grid on all cores at once; return the seconds it took."""
    if not place.cuda:
        return 0.0
    begin = time.perf_counter()
    wanted: dict[Any, None] = {}
    for point in points:
        for variant in candidates.likely(point.kind, point.hidden, point.batch, False, chip()):
            wanted |= dict.fromkeys(sizes(point).kernels(variant))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda kernel_layout: cuda_recurrence.binary(kernel_layout, torch.cuda.current_device()), wanted))
    return time.perf_counter() - begin


def sizes(point: Point) -> cuda_recurrence.Sizes:
    return cuda_recurrence.Sizes(point.kind, point.hidden, False, point.features, point.layers)


def chip() -> candidates.Chip:
    if not torch.cuda.is_available():
        return candidates.Chip(132, (9, 0))
    properties = torch.cuda.get_device_properties(0)
    return candidates.Chip(properties.multi_processor_count, (properties.major, properties.minor))


class Record:
    """The result file, rewritten after each shape: compact, which takes milliseconds, and readable at the end."""

    def __init__(self, path: Path, about: dict[str, Any], resume: bool) -> None:
        self.path = path
        command = " ".join(Path(word).name if Path(word).is_absolute() else word for word in sys.argv)
        calls = [{"command": command, "date": datetime.now(timezone.utc).isoformat()}]
        self.content: dict[str, Any] = {"about": {**about, "calls": calls}, "points": [], "failed": {}}
        if resume and path.exists():
            self.take(path)

    @property
    def done(self) -> set[str]:
        return {result["name"] for result in self.content["points"]} | set(self.content["failed"])

    def take(self, path: Path) -> None:
        """Take over from another file what is missing here; machine and versions must be the same."""
        loaded = json.loads(path.read_text(encoding="utf-8"))
        theirs, mine = loaded["about"], self.content["about"]
        calls = theirs.pop("calls", None) or [{name: theirs.pop(name, None) for name in ("command", "date")}]
        mine["calls"] = sorted([*calls, *mine["calls"]], key=lambda result: str(result["date"]))
        for name in theirs.keys() | (mine.keys() - {"calls"}):
            if theirs.get(name) != mine.setdefault(name, theirs.get(name)):
                sys.exit(
                    f"{path} was measured with {name} {theirs.get(name)!r}, not {mine[name]!r}; choose another --out"
                )
        self.content["points"] += [result for result in loaded["points"] if result["name"] not in self.done]
        self.content["failed"] = loaded.get("failed", {}) | self.content["failed"]

    def add(self, result: dict[str, Any]) -> None:
        self.content["points"].append(result)
        self.write(indent=None)

    def write(self, indent: int | None = 1) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.content, indent=indent), encoding="utf-8")
        partial.replace(self.path)


@contextmanager
def noted(name: str, record: Record) -> Iterator[None]:
    """Note a failure. Too little memory is no reason to stop; after any other error the device may be unusable."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        record.content["failed"][name] = "too little memory"
        print(f"{name}: too little memory", flush=True)
    except Exception as error:
        record.content["failed"][name] = str(error)
        raise


def run_points(points: list[Point], options: argparse.Namespace, place: Place, record: Record) -> None:
    begin = time.perf_counter()
    selection.MEASURED_AT_MOST = len(points)  # a program has fewer shapes
    left = [point for point in points if point.name not in record.done]
    print(f"compiled in {prepare(left, place):.1f} s\n{HEAD}", flush=True)
    for number, point in enumerate(left):
        if time.perf_counter() - begin > options.seconds:
            print(f"ended after {options.seconds} s, {len(left) - number} of {len(points)} shapes are left")
            break
        with noted(point.name, record):
            started = time.perf_counter()
            result = measured(point, place, options.graphs, options.shape_seconds)
            record.add({**result, "seconds": time.perf_counter() - started})
            print(line(point, result), flush=True)
        place.tidy()


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


def of_the_grid(reports: float | None, others: float | None) -> float | None:
    """Weight both means as in the whole grid, since more of the reports' shapes are measured first."""
    if reports is None or others is None:
        return None
    shapes = whole()
    share = sum(shape.of_the_reports for shape in shapes) / len(shapes)
    return math.exp(share * math.log(reports) + (1 - share) * math.log(others))


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    def mean(chosen: list[dict[str, Any]]) -> float | None:
        logs = [math.log(result["speedup"]) for result in chosen]
        return math.exp(statistics.fmean(logs)) if logs else None

    reports, others = (
        [result for result in results if Point(**result["point"]).of_the_reports == yes] for yes in (True, False)
    )
    groups = {"all": mean(results), "reports": mean(reports), "grid": of_the_grid(mean(reports), mean(others))}
    for name in ("kind", "batch", "steps", "hidden", "layers", "features"):
        for value in sorted({result["point"][name] for result in results}, key=str):
            groups[f"{name} {value}"] = mean([result for result in results if result["point"][name] == value])
    ours = [result for result in results if result["variant"] != selection.CUDNN]  # elsewhere both sides are cuDNN
    slower = [result["name"] for result in ours if result["speedup"] < 0.97]
    memory = {result["name"]: result["bytes"]["ours"] / max(1, result["bytes"]["cudnn"]) for result in results}
    errors = {result["name"]: result["error"]["ours"] / max(1e-30, result["error"]["cudnn"]) for result in results}
    return {
        "geometric_mean_speedup": groups,
        "shapes": len(results),
        "by_cudnn": sum(result["variant"] == "cudnn" for result in results),
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
    """Return all variants that fit, whatever their estimate."""
    cuda = [
        Variant(product, rows, cluster, blocks, finer)
        for product, all_rows in ROWS.items()
        for rows in all_rows
        for cluster in candidates.CLUSTERS
        for blocks, finer in ((1, 1), (2, 1), (1, 2))
    ]
    fitting = [
        variant
        for variant in cuda
        if all(layout(point.kind, point.hidden, variant, back, False) is not None for back in (0, 1))
    ]
    return [variant for variant in fitting if variant.rows <= max(8, point.batch * variant.cluster // 32)]


def estimated(point: Point, variant: Variant) -> float:
    pair = [layout(point.kind, point.hidden, variant, back, False) for back in (False, True)]
    return sum(
        candidates.estimate(kernel_layout, point.batch, chip()) for kernel_layout in pair if kernel_layout is not None
    )


def sweep(points: list[Point], options: argparse.Namespace, place: Place, record: Record) -> None:
    begin = time.perf_counter()
    for point in points:
        if point.name in record.done or time.perf_counter() - begin > options.seconds:
            continue
        variants = sorted(every_variant(point), key=lambda variant: estimated(point, variant))[: options.variants]
        variants = measurement.compile_all(sizes(point), variants, torch.cuda.current_device())
        case = Case(point, place)
        times = measurement.interleaved({way: case.by(way) for way in ("cudnn", *map(str, variants))})
        expected = {str(variant): estimated(point, variant) for variant in variants}
        record.add({"point": asdict(point), "name": point.name, "ms": times, "estimate": expected})
        print(f"{point.name}  cuDNN {times['cudnn']:.3f} ms")
        for way in sorted(times, key=lambda variant: times[variant]):
            print(
                f"    {way:24} {times[way]:8.3f} ms  {times['cudnn'] / times[way]:5.2f}×  {expected.get(way, 0):8.0f}"
            )
        sys.stdout.flush()
        del case
        place.tidy()
    record.write()


def part(text: str) -> tuple[int, int]:
    """Parse 2/3 into the numbers 2 and 3."""
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part; one is 2/3, of 1/3 to 3/3")
    return int(number), int(of)


def part_of(points: list[Point], number: int, parts: int) -> list[Point]:
    """Take points by twos: neighbours are LSTM and GRU, or reports and others, so each part has as many of both."""
    return [point for place, point in enumerate(points) if place // 2 % parts == number - 1]


def numbers(text: str) -> set[int]:
    try:
        return {int(number) for number in text.split(",")}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} should be numbers, such as 3,8") from None


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--graphs", action="store_true", help="time replays of CUDA graphs")
    parser.add_argument("--compile", action="store_true", help="only compile what will be tried")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--part", type=part, default=(1, 1), help="2/3: the second third, as mixed as all")
    for name in ("hidden", "features"):
        parser.add_argument(f"--{name}", type=numbers, default=set(), help="3,8: only shapes with so many")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="PART", help="measure nothing: one file of these")
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--shape-seconds", type=float, default=4.0, help="of timing; at least one round is run")
    parser.add_argument("--variants", type=int, default=24, help="of a sweep, likeliest first")
    parser.add_argument("--shapes", type=int, help="only the first so many")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the script out")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available() and not options.merge:
        parser.error("torch sees no GPU; --device cpu tries the script out")
    if options.graphs and options.device == "cpu":
        parser.error("--graphs needs a GPU")
    if options.out is None and not options.compile:
        parser.error("--out FILE says where the result goes")
    return options


def merge(options: argparse.Namespace) -> None:
    record = Record(options.out, {}, False)
    record.content["about"]["calls"] = []  # this one measures nothing
    for path in options.merge:
        record.take(path)
    finish(record)


def finish(record: Record) -> None:
    record.content["summary"] = summary(record.content["points"])
    record.write()
    tell(record.content["summary"])


def main() -> None:
    options = read_options()
    if options.merge:
        merge(options)
        return
    place = Place(options.device)
    every = quick() if options.quick else spread() if options.sweep else grid()
    wanted = [
        point
        for point in every
        if point.hidden in (options.hidden or {point.hidden})
        and point.features in (options.features or {point.features})
    ]
    points = part_of(wanted, *options.part)[: options.shapes]
    if options.compile:
        print(f"compiled in {prepare(points, place):.1f} s")
        return
    record = Record(options.out, place.about(), options.resume)
    if options.sweep:
        sweep(points, options, place, record)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    gc.freeze()  # so that tidying up after each shape does not look at all that was imported
    try:
        run_points(points, options, place, record)
    except KeyboardInterrupt:
        print(f"interrupted after {len(record.done)} of {len(points)} shapes")
    finally:
        gc.unfreeze()
        finish(record)


if __name__ == "__main__":
    main()
