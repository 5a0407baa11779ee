"""Compares samples: whether two are bit-identical, and whether two are alike enough to be stacked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hotlap.loading.pure import Unfit


class NotStacked(Unfit):
    """A batch is more than its samples stacked."""


def same(torch: Any, first: Any, second: Any) -> bool:
    """Return whether types, values and containers are the same; NaN equals NaN, and 0.0 is not -0.0."""
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return _same_tensors(torch, first, second)
    if isinstance(first, float):
        return bool(first.hex() == second.hex())
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(torch, first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(same(torch, a, b) for a, b in zip(first, second, strict=True))
    if hasattr(first, "tobytes"):  # numpy arrays and scalars, images
        return _like(first) == _like(second) and _content(first) == _content(second)
    try:
        return bool(first == second)
    except Exception as error:
        raise Unfit(f"its items hold a {type(first).__name__}, which cannot be compared") from error


def _same_tensors(torch: Any, first: Any, second: Any) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape or first.device != second.device:
        return False
    if first.requires_grad != second.requires_grad:
        return False
    if first.layout != torch.strided or first.is_quantized:
        raise Unfit(f"its items hold tensors of layout {first.layout}")
    return bool(torch.equal(_bits(torch, first), _bits(torch, second)))


def _bits(torch: Any, tensor: Any) -> Any:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _like(array: Any) -> tuple[Any, ...]:
    return tuple(getattr(array, name, None) for name in ("dtype", "shape", "mode", "size"))


def _content(array: Any) -> Any:
    dtype = getattr(array, "dtype", None)
    return array.tolist() if dtype is not None and dtype.hasobject else array.tobytes()


def like(torch: Any, first: Any) -> Callable[[Any], bool]:
    """Return a check, called for each sample, of whether it has the types, dtypes, shapes and strides of the first."""
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
        form = (first.dtype, first.shape, getattr(first, "strides", None))
        return lambda sample: (
            type(sample) is kind and (sample.dtype, sample.shape, getattr(sample, "strides", None)) == form
        )
    if isinstance(first, dict):
        keys, values = list(first), [like(torch, value) for value in first.values()]
        return lambda sample: type(sample) is kind and list(sample) == keys and _each(values, sample.values())
    if isinstance(first, list | tuple):
        parts, count = [like(torch, value) for value in first], len(first)
        return lambda sample: type(sample) is kind and len(sample) == count and _each(parts, sample)
    return lambda sample: type(sample) is kind


def _each(checks: list[Callable[[Any], bool]], values: Iterable[Any]) -> bool:
    return all(check(value) for check, value in zip(checks, values, strict=True))
