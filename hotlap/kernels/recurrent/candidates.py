"""Which variants are worth measuring for a shape, likeliest first.

The estimate counts the cycles of a step: products by issue rate, the pointwise part by elements per thread, and
barriers. It only orders candidates; what is used was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hotlap.kernels.recurrent.geometry import Layout, Variant, layout

FMA_ROWS = (1, 2, 3, 4, 6, 8)
MMA_ROWS = (8, 16, 32)
TILE_ROWS = (4, 8, 16)
CLUSTERS = (1, 2, 4, 8)
MEASURED, OTHERS = 4, 2  # of all that fit; of those without tiles, beside tiles
TENSOR_CORE, IN_A_CHAIN = 6.5, 28  # cycles from one m16n8k8 to the next, and to one that needs its sums
DRAWN_BY_TILES = 65536 // 248
DRAWN = 65536 // 168  # threads a multiprocessor holds, at the registers these kernels use


@dataclass(frozen=True)
class Chip:
    multiprocessors: int
    capability: tuple[int, int]


def likely(kind: str, hidden: int, batch: int, exact: bool, chip: Chip) -> list[Variant]:
    """Return the CUDA variants that fit, by estimated time."""
    found: dict[Variant, float] = {}
    for variant in _possible(batch, exact, chip):
        pair = [layout(kind, hidden, variant, backward, exact) for backward in (False, True)]
        if all(pair):
            found[variant] = sum(
                estimate(kernel_layout, batch, chip) for kernel_layout in pair if kernel_layout is not None
            )
    best = sorted(found, key=lambda candidate: found[candidate])
    tiles = [candidate for candidate in best if candidate.product == "tile"][: MEASURED - 1]
    untiled = [candidate for candidate in best if candidate.product != "tile"][: OTHERS if tiles else MEASURED]
    return [*tiles, *_with_two_blocks(untiled, kind, hidden, batch, exact, chip)]


def _with_two_blocks(best: list[Variant], kind: str, hidden: int, batch: int, exact: bool, chip: Chip) -> list[Variant]:
    """Replace the last by two of the smallest blocks on each multiprocessor, if tensor-core blocks outnumber those."""
    smallest = min(best, key=lambda candidate: candidate.rows * candidate.cluster, default=None)
    if smallest is None or smallest.product != "mma" or -(-batch // smallest.rows) <= chip.multiprocessors:
        return best
    two = replace(smallest, blocks=2)
    pair = [layout(kind, hidden, two, backward, exact) for backward in (False, True)]
    return [*best[:-1], two] if all(pair) else best


def _possible(batch: int, exact: bool, chip: Chip) -> Iterator[Variant]:
    clusters = CLUSTERS if chip.capability >= (9, 0) else (1,)
    for cluster in clusters:
        for rows in FMA_ROWS:
            yield Variant("fma", rows, cluster)
            yield Variant("fma", rows, cluster, finer=2)
        if not exact and chip.capability >= (8, 0):
            for rows in MMA_ROWS:
                yield Variant("mma", rows, cluster)
            for rows in TILE_ROWS:
                yield Variant("tile", rows, cluster)
                yield Variant("tile", rows, cluster, finer=2)


def estimate(kernel_layout: Layout, batch: int, chip: Chip) -> float:
    """Estimate the cycles of one step of the whole batch."""
    if kernel_layout.variant.product == "tile":
        return _of_tiles(kernel_layout, batch, chip)
    variant, warps = kernel_layout.variant, kernel_layout.threads / 32
    units = kernel_layout.padded // variant.cluster
    gates = 4 if kernel_layout.lstm else 3
    depth = (gates * kernel_layout.padded if kernel_layout.backward else kernel_layout.padded) / kernel_layout.split
    if variant.product == "mma":
        product = variant.rows / 8 * depth / 8 * max(kernel_layout.tiles * 8 * warps / 4, 20)
    else:
        product = variant.rows * depth * max(1.3 * warps / 4, 1)
    elements = units * variant.rows
    pointwise = 220 + 60 * elements / 128 + 2 * kernel_layout.split * elements / 32 + 10 * kernel_layout.split
    barriers = 120 + (350 + 4 * variant.cluster * elements / 32 if variant.cluster > 1 else 0)
    at_once = max(1, min(DRAWN // kernel_layout.threads, 8)) * (chip.multiprocessors // variant.cluster)
    clusters = kernel_layout.clusters(batch)
    waves = -(-clusters // at_once)
    crowd = min(-(-clusters // (chip.multiprocessors // variant.cluster)), at_once)  # blocks that share issue slots
    shared = max(1, min(crowd, DRAWN // kernel_layout.threads))
    return waves * (product * shared + pointwise + barriers)


def _of_tiles(kernel_layout: Layout, batch: int, chip: Chip) -> float:
    """Estimate by the rate of tensor cores or the length of a chain of sums, by that of special functions, and one
    barrier.
    """
    variant, gates, split = kernel_layout.variant, 4 if kernel_layout.lstm else 3, kernel_layout.split
    narrow, warps = max(1, variant.rows // 8), kernel_layout.threads // 32
    elements, queue = 2 // split * max(1, variant.rows // 4), -(-warps // 4)
    products = gates * kernel_layout.padded // 8 // split * narrow
    chains = (4 if narrow == 1 else 2) if kernel_layout.backward else 4 // split * narrow
    product = max(queue * products * TENSOR_CORE, products / chains * IN_A_CHAIN)
    pointwise = 80 + queue * elements * (40 if kernel_layout.backward else 90)
    barriers = 80 + (80 if kernel_layout.backward and split > 1 else 0) + (450 if variant.cluster > 1 else 0)
    blocks = max(1, DRAWN_BY_TILES // kernel_layout.threads)
    places = chip.multiprocessors // variant.cluster
    clusters = kernel_layout.clusters(batch)
    crowd = min(-(-clusters // places), blocks)
    waves = -(-clusters // (places * blocks))
    return waves * (product * crowd + pointwise * (1 + crowd) / 2 + barriers)
