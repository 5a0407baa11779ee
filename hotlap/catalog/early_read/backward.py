"""A backward that was called: the loss it began with, and the place in the queue where it began."""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import Any

from hotlap.catalog.early_read.reader import Reader

DEEP, MANY = 6, 32  # how far below the loss, and how many nodes of its graph, a part of it is looked for


class Backward:
    __slots__ = ("__weakref__", "_at", "_loss", "_stream", "_thread", "_version", "mark", "nodes", "slot")

    def __init__(self, reader: Reader, loss: Any, copy_now: bool, with_parts: bool) -> None:
        self._loss = weakref.ref(loss, _forgetting(self)) if with_parts else weakref.ref(loss)
        self._version, self._at = loss._version, loss.data_ptr()
        self._thread, self._stream = get_ident(), reader.stream(loss)
        self.nodes = nodes_below(loss) if with_parts else []
        self.slot = reader.copied(loss) if copy_now else None
        self.mark = reader.mark(self._stream)

    def is_here(self, reader: Reader) -> bool:
        """Whether who reads would wait for the same queue."""
        loss = self._loss()
        return loss is not None and self._thread == get_ident() and self._stream == reader.stream(loss)

    def is_of(self, tensor: Any) -> bool:
        """Whether this is the loss, or its memory without the history, as it was then."""
        loss = self._loss()
        if loss is None or tensor._version != self._version or tensor.data_ptr() != self._at:
            return False
        return tensor is loss or (tensor.dtype is loss.dtype and tensor.device == loss.device)

    def has_part(self, tensor: Any) -> bool:
        """Whether the loss was made of it: then it was there before the backward."""
        if not self.nodes or tensor._version:
            return False
        node = tensor.grad_fn
        return node is not None and any(node is one for one in self.nodes)


def _forgetting(backward: Backward) -> Any:
    """The graph is not kept longer than the loss is."""
    known = weakref.ref(backward)

    def forget(_: Any) -> None:
        if (one := known()) is not None:
            one.nodes = []

    return forget


def nodes_below(loss: Any) -> list[Any]:
    """While they are held, a tensor's `grad_fn` is one of these very objects."""
    level = [loss.grad_fn]
    found = list(level)
    for _ in range(DEEP):
        level = [node for one in level for node, _ in one.next_functions if node is not None]
        found += level
        if not level or len(found) > MANY:
            break
    return found[:MANY]
