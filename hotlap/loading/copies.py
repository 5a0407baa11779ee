"""Copies samples leaf by leaf, so that the program cannot modify the cached one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from hotlap.loading.unsuited import Unfit

UNCHANGEABLE = (int, float, complex, bool, str, bytes, type(None))


def faithful_copy(torch: Any, sample: Any) -> Any:
    """Return a copy for the cache. Raises Unfit if its memory layout differs from the sample's or the sample holds an
    object twice: a collate_fn may read in memory order, or write to one reference and see it in the other.
    """
    copy = copied(torch, sample)
    memory: set[int] = set()
    _require_faithful(torch, sample, copy, memory)
    return copy


def _require_faithful(torch: Any, sample: Any, copy: Any, memory: set[int]) -> None:
    kind = type(sample)
    if kind in UNCHANGEABLE or (kind is tuple and not sample):
        return
    place = _place(torch, sample)
    if place in memory:
        raise Unfit("its samples hold an object twice, or several parts of one tensor")
    memory.add(place)
    if _form(torch, sample) != _form(torch, copy):
        raise Unfit("its samples are views of larger tensors, and copies would not be")
    if isinstance(sample, dict):
        sample, copy = list(sample.values()), list(copy.values())
    if isinstance(sample, list | tuple):
        for value, value_copy in zip(sample, copy, strict=True):
            _require_faithful(torch, value, value_copy, memory)


def _place(torch: Any, value: Any) -> int:
    if type(value) is torch.Tensor:
        return int(value.untyped_storage().data_ptr()) or id(value)
    while type(getattr(value, "base", None)).__name__ == "ndarray":
        value = value.base
    return id(value)


def _form(torch: Any, value: Any) -> Any:
    if type(value) is torch.Tensor:
        return value.stride(), value.is_conj(), value.is_neg(), value.storage_offset(), value.untyped_storage().nbytes()
    return getattr(value, "strides", None), getattr(getattr(value, "flags", None), "writeable", None)


def copied(torch: Any, sample: Any) -> Any:
    """Return a copy of a sample. Raises Unfit if a part of it may not be copied faithfully."""
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
    raise Unfit(f"its samples hold a {kind.__name__}, which may not be copied faithfully")
