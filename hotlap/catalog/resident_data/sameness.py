"""Compares samples: whether two are bit-identical, and whether two are alike enough to be stacked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hotlap.loading.unsuited import Unfit


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


def form_of(sample: Any) -> tuple[Any, ...]:
    """Return the types, dtypes, shapes and strides of a sample, which can be compared and pickled."""
    kind = type(sample)
    if hasattr(sample, "requires_grad") and hasattr(sample, "stride"):
        return kind, sample.dtype, sample.shape, sample.stride(), str(sample.device), sample.requires_grad
    if hasattr(sample, "dtype") and hasattr(sample, "shape"):
        return kind, sample.dtype, sample.shape, getattr(sample, "strides", None)
    if isinstance(sample, dict):
        return kind, tuple((key, form_of(value)) for key, value in sample.items())
    if isinstance(sample, list | tuple):
        return kind, tuple(map(form_of, sample))
    return (kind,)


class ComparingCollate:
    """The collate_fn of workers; returns also whether all samples have the form of those that are cached.

    A batch alone does not show that: its dtypes follow the first of its samples.
    """

    def __init__(self, collate: Any, form: tuple[Any, ...]) -> None:
        self._collate, self._form = collate, form

    def __call__(self, samples: list[Any]) -> tuple[Any, bool]:
        return self._collate(samples), all(form_of(sample) == self._form for sample in samples)


def can_be_pickled() -> bool:
    """Return whether Python processes that the program starts find our modules, which it may prevent."""
    if __name__.partition(".")[0] == "hotlap":
        return True  # without a command: the program imports us itself
    boot = str(Path(__file__).parents[2] / "patch" / "boot")
    is_entered = bool(os.environ.get("HOTLAP_SESSION")) and os.environ.get("HOTLAP") != "off"
    return is_entered and boot in os.environ.get("PYTHONPATH", "").split(os.pathsep)
