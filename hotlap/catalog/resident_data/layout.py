"""Takes a batch apart into its tensors and puts it together again, containers and all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hotlap.catalog.resident_data.sameness import NotStacked
from hotlap.loading.unsuited import Unfit


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
