"""Which variants are worth measuring for a shape, likeliest first.

The estimate counts cycles of a step: products by issue rate, the pointwise part by elements a thread, barriers. It only
orders; what is used was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hotlap.engine.nn.geometry import Layout, Variant, layout

FMA_ROWS = (1, 2, 3, 4, 6, 8)
MMA_ROWS = (8, 16, 32)
CLUSTERS = (1, 2, 4, 8)
MEASURED = 4  # of all that fit
DRAWN = 65536 // 168  # threads a multiprocessor holds, at the registers these kernels use


@dataclass(frozen=True)
class Chip:
    multiprocessors: int
    capability: tuple[int, int]


def likely(kind: str, hidden: int, batch: int, exact: bool, chip: Chip) -> list[Variant]:
    """CUDA variants that fit, by estimated time."""
    found: dict[Variant, float] = {}
    for variant in _possible(batch, exact, chip):
        pair = [layout(kind, hidden, variant, backward, exact) for backward in (False, True)]
        if all(pair):
            found[variant] = sum(estimate(one, batch, chip) for one in pair if one is not None)
    best = sorted(found, key=lambda one: found[one])[:MEASURED]
    return _with_two_blocks(best, kind, hidden, batch, exact, chip)


def _with_two_blocks(best: list[Variant], kind: str, hidden: int, batch: int, exact: bool, chip: Chip) -> list[Variant]:
    """Where blocks of tensor cores outnumber multiprocessors, the last gives way to two of the smallest on each."""
    smallest = min(best, key=lambda one: one.rows * one.cluster, default=None)
    if smallest is None or smallest.product != "mma" or -(-batch // smallest.rows) <= chip.multiprocessors:
        return best
    two = replace(smallest, blocks=2)
    pair = [layout(kind, hidden, two, backward, exact) for backward in (False, True)]
    return [*best[: MEASURED - 1], two] if all(pair) else best


def of_triton(hidden: int) -> list[Variant]:
    """Where CUDA C++ cannot be compiled."""
    from hotlap.engine.nn.triton_walk import HIDDEN_AT_MOST

    if hidden > HIDDEN_AT_MOST:
        return []
    dots = [Variant("triton", "dot", rows, blocks=4) for rows in (16, 64)]
    return [*dots, *(Variant("triton", "fma", rows, blocks=8 if hidden > 32 else 4) for rows in (1, 2))]


def _possible(batch: int, exact: bool, chip: Chip) -> Iterator[Variant]:
    clusters = CLUSTERS if chip.capability >= (9, 0) else (1,)
    for cluster in clusters:
        for rows in FMA_ROWS:
            yield Variant("cuda", "fma", rows, cluster)
            yield Variant("cuda", "fma", rows, cluster, finer=2)
        if not exact and chip.capability >= (8, 0):
            for rows in MMA_ROWS:
                yield Variant("cuda", "mma", rows, cluster)


def estimate(one: Layout, batch: int, chip: Chip) -> float:
    """Cycles for one step of the whole batch."""
    variant, warps = one.variant, one.threads / 32
    units = one.padded // variant.cluster
    gates = 4 if one.lstm else 3
    depth = (gates * one.padded if one.backward else one.padded) / one.split
    if variant.product == "mma":
        product = variant.rows / 8 * depth / 8 * max(one.tiles * 8 * warps / 4, 20)
    else:
        product = variant.rows * depth * max(1.3 * warps / 4, 1)
    elements = units * variant.rows
    pointwise = 220 + 60 * elements / 128 + 2 * one.split * elements / 32 + 10 * one.split
    barriers = 120 + (350 + 4 * variant.cluster * elements / 32 if variant.cluster > 1 else 0)
    at_once = max(1, min(DRAWN // one.threads, 8)) * (chip.multiprocessors // variant.cluster)
    clusters = one.clusters(batch)
    waves = -(-clusters // at_once)
    crowd = min(-(-clusters // (chip.multiprocessors // variant.cluster)), at_once)  # blocks that share issue slots
    shared = max(1, min(crowd, DRAWN // one.threads))
    return waves * (product * shared + pointwise + barriers)
