"""The sample cost of a pure dataset: the time to fetch an item, and its size."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from hotlap.loading.pure import Pure, length_of, visit

ITEMS = 3
OVERHEAD = 64  # approximate bytes of a Python object
PLAIN = (int, float, complex, bool, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Weight:
    item_us: float
    item_bytes: int
    on_host: bool  # all its tensors are in host memory
    plain: bool  # nothing but tensors, arrays, numbers and text in plain containers


def weight_of(torch: Any, dataset: Any, pure: Pure) -> Weight:
    """Measure a few items, which leaves nothing behind; raises Unfit if one cannot be fetched."""
    total = length_of(dataset)
    rows = list(dict.fromkeys([0, total - 1, total // 2]))[:ITEMS] if total else []
    samples, seconds = [], float("inf")
    with pure.handles_closed_after(dataset):
        for row in rows:
            began = time.perf_counter()
            samples += visit(dataset, [row])
            seconds = min(seconds, time.perf_counter() - began)
    leaves = [leaf for sample in samples for leaf in leaves_of(sample)]
    return Weight(
        item_us=seconds * 1e6 if samples else 0.0,
        item_bytes=sum(map(size_of, leaves)) // max(1, len(samples)),
        on_host=all(leaf.device.type == "cpu" for leaf in leaves if isinstance(leaf, torch.Tensor)),
        plain=all(_is_plain(torch, leaf) for leaf in leaves),
    )


def leaves_of(sample: Any) -> list[Any]:
    if isinstance(sample, dict):
        return [leaf for value in sample.values() for leaf in leaves_of(value)]
    if isinstance(sample, list | tuple):
        return [leaf for value in sample for leaf in leaves_of(value)]
    return [sample]


def size_of(leaf: Any) -> int:
    """Return the approximate size in bytes."""
    if hasattr(leaf, "nbytes"):
        return OVERHEAD + int(leaf.nbytes)
    if isinstance(leaf, str | bytes):
        return OVERHEAD + len(leaf)
    return OVERHEAD + (len(leaf.tobytes()) if hasattr(leaf, "tobytes") else 0)


def _is_plain(torch: Any, leaf: Any) -> bool:
    return isinstance(leaf, (*PLAIN, torch.Tensor)) or type(leaf).__module__ == "numpy"
