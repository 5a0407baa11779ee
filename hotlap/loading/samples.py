"""Samples and batches: whether two are alike, and how one is taken apart into its tensors and put together again."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
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
    boot = str(Path(__file__).parents[1] / "patch" / "boot")
    is_entered = bool(os.environ.get("HOTLAP_SESSION")) and os.environ.get("HOTLAP") != "off"
    return is_entered and boot in os.environ.get("PYTHONPATH", "").split(os.pathsep)


@dataclass(frozen=True)
class Layout:
    """The containers around a batch's leaves. A leaf is a tensor, or a list or tuple with one string per sample."""

    made: type | None = None  # the container; None for a leaf
    keys: tuple[Any, ...] | None = None
    parts: tuple[Layout, ...] = ()

    def build(self, leaves: Iterator[Any]) -> Any:
        if self.made is None:
            return next(leaves)
        parts = [next(leaves) if part.made is None else part.build(leaves) for part in self.parts]
        if self.keys is not None:
            return self.made(zip(self.keys, parts, strict=True))
        return self.made(*parts) if hasattr(self.made, "_fields") else self.made(parts)

    def as_pinned(self) -> Layout:
        """Return the layout after pinning: torch turns a tuple into a list."""
        made = list if self.made is tuple else self.made
        return Layout(made, self.keys, tuple(part.as_pinned() for part in self.parts))


LEAF = Layout()


def take_apart(torch: Any, batch: Any, rows: int | None) -> tuple[Layout, list[Any]]:
    """Return the layout and leaves of a batch. With `rows`, every leaf must have that many rows; without, anything that
    is not a container is a leaf.
    """
    leaves: list[Any] = []
    return _take_apart(torch, batch, rows, leaves), leaves


def _take_apart(torch: Any, value: Any, rows: int | None, leaves: list[Any]) -> Layout:
    kind = type(value)
    if rows is not None and _is_leaf(torch, value, rows):
        leaves.append(value)
        return LEAF
    if kind in (dict, OrderedDict):
        parts = tuple(_take_apart(torch, child, rows, leaves) for child in value.values())
        return Layout(kind, tuple(value), parts)
    if kind in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return Layout(kind, None, tuple(_take_apart(torch, child, rows, leaves) for child in value))
    if rows is not None:
        raise NotStacked(f"a batch holds a {kind.__name__}")
    leaves.append(value)
    return LEAF


def _is_leaf(torch: Any, value: Any, rows: int) -> bool:
    kind = type(value)
    if kind in (list, tuple):
        return len(value) == rows and all(isinstance(text, str | bytes) for text in value)
    if kind is not torch.Tensor:
        return False
    if value.layout != torch.strided or value.is_quantized or value.requires_grad:
        raise Unfit("a batch holds a tensor that is sparse, quantized or requires a gradient")
    if value.dim() == 0 or value.shape[0] != rows:
        raise NotStacked(f"a batch of {rows} samples holds a tensor of shape {tuple(value.shape)}")
    return True
