"""A batch taken apart into its tensors and put together again, containers and all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hotlap.catalog.resident_data.sameness import NotStacked
from hotlap.loading.pure import Unfit


@dataclass(frozen=True)
class Layout:
    """Where the leaves of a batch stand. A leaf is a tensor, or a list or tuple of as many strings as samples."""

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
        """What pinning makes of the containers: torch turns a tuple into a list."""
        made = list if self.made is tuple else self.made
        return Layout(made, self.keys, tuple(part.as_pinned() for part in self.parts))


LEAF = Layout()


def take_apart(torch: Any, batch: Any, rows: int | None) -> tuple[Layout, list[Any]]:
    """With `rows` every leaf must have one row per sample; without, whatever is no container is a leaf."""
    leaves: list[Any] = []
    return _take_apart(torch, batch, rows, leaves), leaves


def _take_apart(torch: Any, part: Any, rows: int | None, leaves: list[Any]) -> Layout:
    kind = type(part)
    if rows is not None and _is_leaf(torch, part, rows):
        leaves.append(part)
        return LEAF
    if kind in (dict, OrderedDict):
        parts = tuple(_take_apart(torch, value, rows, leaves) for value in part.values())
        return Layout(kind, tuple(part), parts)
    if kind in (list, tuple) or (isinstance(part, tuple) and hasattr(part, "_fields")):
        return Layout(kind, None, tuple(_take_apart(torch, value, rows, leaves) for value in part))
    if rows is not None:
        raise NotStacked(f"a batch holds a {kind.__name__}")
    leaves.append(part)
    return LEAF


def _is_leaf(torch: Any, part: Any, rows: int) -> bool:
    kind = type(part)
    if kind in (list, tuple):
        return len(part) == rows and all(isinstance(text, str | bytes) for text in part)
    if kind is not torch.Tensor:
        return False
    if part.layout != torch.strided or part.is_quantized or part.requires_grad:
        raise Unfit("a batch holds a tensor that is sparse, quantized or requires a gradient")
    if part.dim() == 0 or part.shape[0] != rows:
        raise NotStacked(f"a batch of {rows} samples holds a tensor of shape {tuple(part.shape)}")
    return True
