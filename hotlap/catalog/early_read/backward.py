"""A call of backward: the loss it started from, and the place in the queue where it started."""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import Any

from hotlap.catalog.early_read.reader import Reader

DEEP, MANY = 6, 32  # levels below the loss, and nodes of its graph, in which its terms are looked for


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
        """Whether a read would wait for the same queue."""
        loss = self._loss()
        return loss is not None and self._thread == get_ident() and self._stream == reader.stream(loss)

    def is_of(self, tensor: Any) -> bool:
        """Whether this is the loss, or its memory without the history, unchanged since."""
        loss = self._loss()
        if loss is None or tensor._version != self._version or tensor.data_ptr() != self._at:
            return False
        return tensor is loss or (tensor.dtype is loss.dtype and tensor.device == loss.device)

    def has_part(self, tensor: Any) -> bool:
        """Whether the loss was computed from this tensor, which then existed before the backward."""
        if not self.nodes or tensor._version:
            return False
        node = tensor.grad_fn
        return node is not None and any(node is known for known in self.nodes)


def _forgetting(backward: Backward) -> Any:
    """Return a callback that lets go of the graph along with the loss."""
    known = weakref.ref(backward)

    def forget(_: Any) -> None:
        if (alive := known()) is not None:
            alive.nodes = []

    return forget


def nodes_below(loss: Any) -> list[Any]:
    """Return nodes of the graph. While they are held, a tensor's `grad_fn` is one of these very objects."""
    level = [loss.grad_fn]
    found = list(level)
    for _ in range(DEEP):
        level = [node for parent in level for node, _ in parent.next_functions if node is not None]
        found += level
        if not level or len(found) > MANY:
            break
    return found[:MANY]
