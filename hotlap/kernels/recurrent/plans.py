"""What the host computes once for a shape run by the CUDA kernels: the kernels, sizes, parts of large products."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hotlap.kernels.cuda.driver import stream_of
from hotlap.kernels.recurrent.cuda_recurrence import Adder, kernel
from hotlap.kernels.recurrent.geometry import Layout, Variant, layout, parse
from hotlap.kernels.recurrent.stack import Shape

TILE, TILES_AT_ONCE = 64, 256  # of a large product: columns of one tile, and tiles that keep a large GPU busy
ROWS_OF_A_PART = 1024
EXACT_HIDDEN, EXACT_FEATURES = 16, 16
EXACT_INPUTS, EXACT_INPUTS_HIDDEN = 64, 256


@dataclass(frozen=True)
class RowPartition:
    """left.T @ right over many rows, in parts that fill the device; leftover rows are a part of their own."""

    parts: int
    each: int
    rest: int


def parting(rows: int, left: int, right: int) -> RowPartition:
    """Choose as many parts as divide the rows evenly, unless those are far too few."""
    if rows == 0:
        return RowPartition(0, 0, 0)
    tiles = -(-left // TILE) * -(-right // TILE)
    wanted = max(1, min(TILES_AT_ONCE // tiles, rows // ROWS_OF_A_PART))
    even = next(parts for parts in range(wanted, 0, -1) if rows % parts == 0)
    parts = even if 2 * even > wanted else wanted
    return RowPartition(parts, rows // parts, rows % parts)


class Launch:
    """A kernel with its grid: called with the bytes of its argument."""

    __slots__ = ("blocks", "kernel", "threads", "walked")

    def __init__(self, found: Layout, batch: int, device: int) -> None:
        self.kernel: Any = kernel(found, device)
        self.blocks, self.threads = found.clusters(batch) * found.variant.cluster, found.threads
        self.walked = found.features

    def __call__(self, stream: int, given: bytes) -> None:
        self.kernel.launch(self.blocks, self.threads, stream, given)


class Level:
    """A layer that takes so many features, in one direction.

    With few features or units, products cost no more in float32 than in TF32. Rounding a program's own inputs is most
    of the error of a layer: there float32 is worth a little time.
    """

    def __init__(self, plan: Plan, variant: Variant, features: int, device: int, first: bool) -> None:
        shape, rows = plan.shape, plan.steps * plan.batch
        found = [_needed(shape, variant, back, features) for back in (False, True)]
        self.features = features
        self.exact = shape.exact or shape.hidden <= EXACT_HIDDEN
        self.exact_inputs = self.exact or features <= EXACT_FEATURES
        inputs = first and features <= EXACT_INPUTS and shape.hidden <= EXACT_INPUTS_HIDDEN
        self.exact_forward = self.exact_inputs or inputs
        self.forward, self.backward = (Launch(kernel_layout, plan.batch, device) for kernel_layout in found)
        walked, four, wide = self.backward.walked, 4 * shape.hidden, shape.gates * shape.hidden
        self.walk_parts = found[1].clusters(plan.batch)
        self.summed = found[1].summed
        self.parts = self.walk_parts * (1 + walked) * four
        of_states = self.walk_parts * wide * shape.hidden if self.summed else 0
        self.work = self.parts + of_states  # floats that the walk leaves to be added up
        self.states = parting(0 if self.summed else (plan.steps - 1) * plan.batch, four, shape.hidden)
        self.inputs = parting(0 if walked else rows, wide, features)
        columns = (
            (1 + walked) * four + (wide if self.summed else four) * shape.hidden + (0 if walked else wide * features)
        )
        self.sums_blocks = -(-columns // 32)


class Plan:
    def __init__(self, shape: Shape, steps: int, batch: int, features: int, device: int) -> None:
        self.shape, self.steps, self.batch = shape, steps, batch
        variant = parse(shape.variant)
        self.first = Level(self, variant, features, device, True)
        wide = shape.hidden * shape.directions
        self.later = self.first if shape.layers == 1 else Level(self, variant, wide, device, False)
        self.wide = wide
        self.kept_width = shape.kept_width
        self.state_bytes = 4 * batch * shape.hidden  # of one layer and direction
        self.kept = steps * batch * self.kept_width  # floats of one layer and direction
        self.sums: Any = kernel(Adder(), device)
        self.sums_threads = Adder().threads
        self.device = device

    def stream(self) -> int:
        return stream_of(self.device)


def _needed(shape: Shape, variant: Variant, backward: bool, features: int) -> Layout:
    found = layout(shape.kind, shape.hidden, variant, backward, shape.exact, features)
    if found is None:
        raise ValueError(f"{variant} cannot hold the weights of a {shape.kind} with {shape.hidden} hidden units")
    return found


planned = lru_cache(maxsize=1024)(Plan)
