"""Samples copied leaf by leaf, so that what the program does to its sample never reaches the one that is kept."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from hotlap.loading.pure import Unfit

UNCHANGEABLE = (int, float, complex, bool, str, bytes, type(None))


def faithful_copy(torch: Any, sample: Any) -> Any:
    """A copy to be kept. Raises Unfit where it is not laid out in memory as the sample is, or the sample holds a thing
    twice: a collate_fn may read it in the order of memory, or write into one and see it in the other.
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
        raise Unfit("its samples hold something twice, or parts of one tensor")
    memory.add(place)
    if _form(torch, sample) != _form(torch, copy):
        raise Unfit("its samples are parts of larger tensors, which a copy is not")
    if isinstance(sample, dict):
        sample, copy = list(sample.values()), list(copy.values())
    if isinstance(sample, list | tuple):
        for part, other in zip(sample, copy, strict=True):
            _require_faithful(torch, part, other, memory)


def _place(torch: Any, part: Any) -> int:
    if type(part) is torch.Tensor:
        return int(part.untyped_storage().data_ptr()) or id(part)
    while type(getattr(part, "base", None)).__name__ == "ndarray":
        part = part.base
    return id(part)


def _form(torch: Any, part: Any) -> Any:
    if type(part) is torch.Tensor:
        return part.stride(), part.is_conj(), part.is_neg(), part.storage_offset(), part.untyped_storage().nbytes()
    return getattr(part, "strides", None), getattr(getattr(part, "flags", None), "writeable", None)


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
