"""Samples copied leaf by leaf, so that what the program does to its sample never reaches the one that is kept."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from hotlap.loading.pure import Unfit

UNCHANGEABLE = (int, float, complex, bool, str, bytes, type(None))


def copied(torch: Any, sample: Any) -> Any:
    """Raises Unfit at what cannot be copied for certain."""
    kind = type(sample)
    if kind in UNCHANGEABLE:
        return sample
    if kind is torch.Tensor and not sample.requires_grad:
        return sample.clone()  # keeps the strides of dense tensors
    if kind in (dict, OrderedDict):
        return kind((key, copied(torch, value)) for key, value in sample.items())
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return kind(*(copied(torch, value) for value in sample))
    if kind in (list, tuple):
        return kind([copied(torch, value) for value in sample])
    if kind.__module__.split(".")[0] in ("numpy", "PIL") and hasattr(sample, "copy"):
        if getattr(getattr(sample, "dtype", None), "hasobject", False):
            raise Unfit("its samples hold arrays of Python objects")
        return sample.copy(order="K") if kind.__name__ == "ndarray" else sample.copy()
    raise Unfit(f"its samples hold a {kind.__name__}, which cannot be copied for certain")
