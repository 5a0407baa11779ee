"""The kernels of recurrent layers one by one: what each takes of a forward and backward pass, inside CUDA graphs.

`python benchmarks/recurrent/recurrent_kernels.py --out FILE`               the reports' shapes, the likeliest variants
`… --shapes lstm:200:400:64:6 --variants cuda:tile:r4:c1:b1 …`             kind:batch:steps:hidden:features

For each shape and variant: milliseconds of the walk forward and backward, of the large products before and after them,
of the kernel that adds up parts, and of the whole; nanoseconds a step; registers, local and shared memory, and thread
blocks that share a multiprocessor, as the driver reports them; how far outputs and gradients are from cuDNN's. Each is
repeated within a captured graph, so the host's time is in none. The file is written after each shape; no shape begins
after `--seconds`. With `--device cpu` it only tries itself out.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from recurrent import chip, sizes
from recurrent_cases import Case, Place, Point, error
from torch import Tensor

from hotlap.kernels.recurrent import candidates, cuda_recurrence, direct, measurement, modules, selection
from hotlap.kernels.recurrent.geometry import Variant, parse
from hotlap.kernels.recurrent.stack import Needs, OutputGradients, Shape, StackInputs

SHAPES = (
    (200, 400, 64, 6),
    (200, 150, 64, 3),
    (200, 150, 16, 3),
    (200, 150, 10, 3),
    (200, 150, 128, 3),
    (512, 400, 128, 3),
)
REPEATED, REPLAYS = 4, 7
Work = Callable[[], Any]


def points(texts: list[str]) -> list[Point]:
    if not texts:
        return [Point(kind, *shape[:3], 1, shape[3]) for shape in SHAPES for kind in ("lstm", "gru")]
    found = []
    for text in texts:
        kind, *numbers = text.split(":")
        batch, steps, hidden, features = map(int, numbers)
        found.append(Point(kind, batch, steps, hidden, 1, features))
    return found


# One variant


class Noted:
    """A kernel in place of the one a plan has: launches it and keeps what it was given."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.given: tuple[int, int, bytes] | None = None

    def launch(self, blocks: int, threads: int, stream: int, given: bytes) -> None:
        self.given = blocks, threads, given
        self.kernel.launch(blocks, threads, stream, given)

    def again(self, plan: Any) -> None:
        """Launch again on the same memory: values change where it overwrites what it reads, but the work does not."""
        if self.given is None:
            raise RuntimeError("it has not been launched")
        blocks, threads, given = self.given
        self.kernel.launch(blocks, threads, plan.stream(), given)


class Keeping(direct.Backward):
    """Keeps alive the tensors whose addresses kernels were given: a capture returns free memory to the driver."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.alive: list[Any] = []

    def _of_states(self, state: int, gates: direct.Gates) -> tuple[Tensor | None, int]:
        self.alive.append(super()._of_states(state, gates))
        return self.alive[-1]  # type: ignore[no-any-return]

    def _of_inputs(self, gates: direct.Gates) -> tuple[Tensor | None, int]:
        self.alive.append(super()._of_inputs(gates))
        return self.alive[-1]  # type: ignore[no-any-return]


class Pieces:
    """One forward and backward pass, and what it is made of."""

    def __init__(self, case: Case, variant: Variant) -> None:
        shape: Shape = modules.shape_of(case.layer, case.point.kind, False, str(variant))
        flat = [weight.detach() for weight in case.weights]
        self.plan = direct.plan_for(shape, case.x)
        self.given = StackInputs(case.x, None, None, flat)
        level = self.plan.first
        self.kept = direct.allocate(self.plan, case.x, True)
        self.back = Keeping(
            self.plan, self.given, self.kept, OutputGradients(case.dy, None, None), Needs(False, False, False), True
        )
        self.kernels = {"forward walk": Noted(level.forward.kernel), "backward walk": Noted(level.backward.kernel)}
        self.kernels["sums"] = Noted(self.plan.sums)
        with ExitStack() as stack:
            stack.callback(self._put_back)
            level.forward.kernel, level.backward.kernel = self.kernels["forward walk"], self.kernels["backward walk"]
            self.plan.sums = self.kernels["sums"]
            direct.forward(self.plan, self.given, self.kept)
            self.back.enter(0)
            weights = direct._weights(shape, flat, 0)
            self.gates = self.back.walk(0, weights)
            self.made = self.back.weight_gradients(0, weights, self.gates)
        self.of_x = weights[0]

    def _put_back(self) -> None:
        level = self.plan.first
        level.forward.kernel = self.kernels["forward walk"].kernel
        level.backward.kernel = self.kernels["backward walk"].kernel
        self.plan.sums = self.kernels["sums"].kernel

    def works(self) -> dict[str, Work]:
        plan, level = self.plan, self.plan.first
        found: dict[str, Work] = {
            name: lambda noted=noted: noted.again(plan)  # type: ignore[misc]
            for name, noted in self.kernels.items()
        }
        if not level.forward.walked:
            found["input product"] = lambda: direct._products(plan, level, self.given.x, self.of_x, self.kept.cells, 0)
        if not level.summed:
            found["state product"] = lambda: direct.Backward._of_states(self.back, 0, self.gates)
        if not level.backward.walked:
            found["input weights product"] = lambda: direct.Backward._of_inputs(self.back, self.gates)
        return found

    def resources(self) -> dict[str, Any]:
        level = self.plan.first
        threads = {"forward walk": level.forward.threads, "backward walk": level.backward.threads}
        blocks = {"forward walk": level.forward.blocks, "backward walk": level.backward.blocks}
        found: dict[str, Any] = {name: {"threads": threads[name], "blocks": blocks[name]} for name in threads}
        for name, resource in found.items():
            try:
                resource |= self.kernels[name].kernel.resources(threads[name])
            except RuntimeError as failure:  # the times are worth keeping
                resource["unknown"] = str(failure)
        return found


def clocked(work: Work, place: Place, repeated: int) -> float:
    """Return the milliseconds of the work once, the median of some replays."""

    def several() -> Any:
        return [work() for _ in range(repeated)][-1]

    run = place.captured(several) if place.cuda else several
    place.timed(run)
    return statistics.median(place.timed(run) for _ in range(REPLAYS)) / repeated


def of_variant(case: Case, variant: Variant, place: Place, cudnn: tuple[Any, ...]) -> dict[str, Any]:
    pieces = Pieces(case, variant)
    times = {name: clocked(work, place, REPEATED) for name, work in pieces.works().items()}
    resources = pieces.resources()
    del pieces
    whole = case.by(str(variant))
    apart = error(whole(), cudnn)
    times["whole"] = clocked(whole, place, 1)
    steps = case.point.steps
    return {
        "ms": times,
        "ns_a_step": {name: 1e6 * times[name] / steps for name in ("forward walk", "backward walk")},
        "resources": resources,
        "apart_from_cudnn": apart,
    }


# All of them


def variants_for(point: Point, texts: list[str], place: Place) -> list[Variant]:
    """Return the requested variants that fit, or the likeliest ones; compiled and loaded."""
    wanted = [parse(variant) for variant in texts] or candidates.likely(
        point.kind, point.hidden, point.batch, False, chip()
    )
    fitting = [variant for variant in wanted if list(sizes(point).kernels(variant))]
    return measurement.compile_all(sizes(point), fitting, torch.cuda.current_device()) if place.cuda else fitting


def prepare(all_points: list[Point], texts: list[str]) -> float:
    """Compile all kernels on all cores at once; return the seconds it took."""
    begin, wanted = time.perf_counter(), dict[Any, None]()
    for point in all_points:
        likely = [parse(variant) for variant in texts]
        for variant in likely or candidates.likely(point.kind, point.hidden, point.batch, False, chip()):
            wanted |= dict.fromkeys(sizes(point).kernels(variant))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda variant: cuda_recurrence.binary(variant, torch.cuda.current_device()), wanted))
    return time.perf_counter() - begin


def of_shape(point: Point, texts: list[str], place: Place) -> dict[str, Any]:
    case = Case(point, place)
    plain = case.by(selection.CUDNN)
    cudnn = plain()
    found: dict[str, Any] = {"point": asdict(point), "name": point.name, "variants": {}, "failed": {}}
    found["cudnn_ms"] = clocked(plain, place, 1)
    for variant in variants_for(point, texts, place):
        try:
            found["variants"][str(variant)] = of_variant(case, variant, place, cudnn)
        except RuntimeError as failure:  # too little memory, or a kernel that cannot be launched here: said in the file
            found["failed"][str(variant)] = str(failure).partition("\n")[0]
        place.tidy()
    return found


def lines(found: dict[str, Any]) -> list[str]:
    made = [f"{found['name']}  cuDNN {found['cudnn_ms']:.3f} ms"]
    for name, variant in sorted(found["variants"].items(), key=lambda pair: pair[1]["ms"]["whole"]):
        forward, backward = (variant["ns_a_step"][walk] for walk in ("forward walk", "backward walk"))
        registers = "/".join(str(resource.get("registers", "?")) for resource in variant["resources"].values())
        local = "/".join(str(resource.get("local_bytes", "?")) for resource in variant["resources"].values())
        other_seconds = sum(
            took for piece, took in variant["ms"].items() if piece not in ("whole", "forward walk", "backward walk")
        )
        made.append(
            f"    {name:24} whole {variant['ms']['whole']:.3f} ms  step {forward:5.0f} + {backward:5.0f} ns  "
            f"other {1e3 * other_seconds:4.0f} µs  registers {registers} spilled {local}  "
            f"apart {variant['apart_from_cudnn']:.1e}"
        )
    return [*made, *(f"    {name} failed: {why}" for name, why in found["failed"].items())]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shapes", nargs="*", default=[])
    parser.add_argument("--variants", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=80.0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser.parse_args()


def main() -> None:
    given = options()
    place, begin = Place(given.device), time.perf_counter()
    wanted = points(given.shapes)
    compiling = prepare(wanted, given.variants) if place.cuda else 0.0
    command = " ".join(Path(word).name if Path(word).is_absolute() else word for word in sys.argv)
    about = {
        **place.about(),
        "command": command,
        "date": datetime.now(timezone.utc).isoformat(),
        "compiling": compiling,
    }
    content: dict[str, Any] = {"about": about, "points": []}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(content, indent=1), encoding="utf-8")
    gc.freeze()  # every capture collects garbage
    print(f"compiled in {compiling:.1f} s", flush=True)
    for point in wanted:
        if time.perf_counter() - begin > given.seconds:
            print(f"{point.name}: no time left", flush=True)
            continue
        found = of_shape(point, given.variants, place)
        content["points"].append(found)
        given.out.write_text(json.dumps(content, indent=1), encoding="utf-8")
        print("\n".join(lines(found)), flush=True)
        place.tidy()


if __name__ == "__main__":
    main()
