"""Whether two samples are the same to the last bit, and whether two are alike enough to stand in one stack."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hotlap.loading.pure import Unfit


class NotStacked(Unfit):
    """Why a batch is more than its samples in a stack."""


def same(torch: Any, one: Any, other: Any) -> bool:
    """Types, values, containers; NaN equals NaN, and 0.0 is not -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _same_tensors(torch, one, other)
    if isinstance(one, float):
        return bool(one.hex() == other.hex())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(torch, one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(torch, a, b) for a, b in zip(one, other, strict=True))
    if hasattr(one, "tobytes"):  # numpy arrays and scalars, images
        return _like(one) == _like(other) and _content(one) == _content(other)
    try:
        return bool(one == other)
    except Exception as error:
        raise Unfit(f"its items hold a {type(one).__name__}, which cannot be compared") from error


def _same_tensors(torch: Any, one: Any, other: Any) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape or one.device != other.device:
        return False
    if one.requires_grad != other.requires_grad:
        return False
    if one.layout != torch.strided or one.is_quantized:
        raise Unfit(f"its items hold tensors of layout {one.layout}")
    return bool(torch.equal(_bits(torch, one), _bits(torch, other)))


def _bits(torch: Any, tensor: Any) -> Any:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _like(array: Any) -> tuple[Any, ...]:
    return tuple(getattr(array, name, None) for name in ("dtype", "shape", "mode", "size"))


def _content(array: Any) -> Any:
    dtype = getattr(array, "dtype", None)
    return array.tolist() if dtype is not None and dtype.hasobject else array.tobytes()


def like(torch: Any, first: Any) -> Callable[[Any], bool]:
    """Whether a sample collates as this one does: the types, dtypes, shapes and strides in them. Asked for each."""
    kind = type(first)
    if isinstance(first, torch.Tensor):
        dtype, shape, stride, device = first.dtype, first.shape, first.stride(), first.device
        needs = first.requires_grad
        return lambda sample: (
            type(sample) is kind
            and sample.dtype is dtype
            and sample.shape == shape
            and sample.stride() == stride
            and sample.device == device
            and sample.requires_grad is needs
        )
    if hasattr(first, "dtype") and hasattr(first, "shape"):
        of = (first.dtype, first.shape, getattr(first, "strides", None))
        return lambda sample: (
            type(sample) is kind and (sample.dtype, sample.shape, getattr(sample, "strides", None)) == of
        )
    if isinstance(first, dict):
        keys, values = list(first), [like(torch, value) for value in first.values()]
        return lambda sample: type(sample) is kind and list(sample) == keys and _each(values, sample.values())
    if isinstance(first, list | tuple):
        parts, count = [like(torch, value) for value in first], len(first)
        return lambda sample: type(sample) is kind and len(sample) == count and _each(parts, sample)
    return lambda sample: type(sample) is kind


def _each(asked: list[Callable[[Any], bool]], values: Iterable[Any]) -> bool:
    return all(ask(value) for ask, value in zip(asked, values, strict=True))
