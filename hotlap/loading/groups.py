"""Many tensors or arrays of one container: compared together, and row by row where each is that of an item."""

from __future__ import annotations

import sys
from typing import Any

from hotlap.loading.bits import PIECE, bytes_of, checksum, on_host, piece_of_memory
from hotlap.loading.row_sums import RowSums

_DIFFERENTIATED = -2  # in place of a version


class Group:
    """Many tensors or arrays of one container, by their versions and their memory."""

    name = "a tensor or array"

    def __init__(self, things: list[Any], of: int = 0) -> None:
        self._things, self.of = things, of
        self._versions = versions_of(things)
        per_part = max(1, PIECE // max(1, int(things[0].nbytes)))
        self._parts = [things[start : start + per_part] for start in range(0, len(things), per_part)]
        self._joined = [can_be_joined(part) for part in self._parts]
        self._sums = self._sums_now()
        self.bytes = sum(int(array.nbytes) for array in things if on_host(array))

    def _sums_now(self) -> list[Any]:
        return [_sum_of_several(*part) for part in zip(self._parts, self._joined, strict=True)]

    def rows(self, total: int) -> RowSums | ElementSums | None:
        if len(self._things) < total:
            return None
        size = int(self._things[0].nbytes)
        is_even = size <= PIECE and can_be_joined(self._things, most=None)
        return GroupRows(self._things, size) if is_even else ElementSums(self._things)

    def has_moved(self) -> bool:
        return False

    def differs(self) -> bool:
        return versions_of(self._things) != self._versions or self._sums_now() != self._sums


class GroupRows(RowSums):
    """Each tensor or array is the row of an item."""

    def __init__(self, things: list[Any], size: int) -> None:
        self._things, self._are_tensors = things, hasattr(things[0], "requires_grad")
        super().__init__(len(things), size)

    def _taken(self, rows: Any) -> Any:
        return _put_together(list(map(self._things.__getitem__, rows.tolist())), self._size)

    def differ(self, rows: Any) -> bool:
        if self._are_tensors and any(self._things[row].requires_grad for row in rows.tolist()):
            return True
        try:
            return super().differ(rows)
        except (RuntimeError, ValueError, TypeError):  # of another form by now
            return True


class ElementSums:
    """The same where they are large, or not of one form."""

    def __init__(self, things: list[Any]) -> None:
        self._things, self._sums = things, list(map(_form_and_sum, things))

    def differ(self, rows: Any) -> bool:
        return any(_form_and_sum(self._things[row]) != self._sums[row] for row in rows.tolist())


def can_be_joined(things: list[Any], most: int | None = PIECE) -> bool:
    """Of one form, on the host: put together in memory that stays in the processor's caches, then summed up at once."""
    first = things[0]
    if holds_objects(first) or first.nbytes == 0:
        return False
    if most is not None and len(things) * first.nbytes > most:
        return False
    return all(
        type(array) is type(first) and array.shape == first.shape and array.dtype == first.dtype and on_host(array)
        for array in things
    )


def _sum_of_several(things: list[Any], joined: bool) -> Any:
    if not joined:
        return list(map(_form_and_sum, things))
    try:
        return checksum(_put_together(things, int(things[0].nbytes)))
    except (RuntimeError, ValueError, TypeError) as error:  # of another form by now
        return str(error)


def _put_together(things: list[Any], each: int) -> memoryview:
    """So many bytes of each, which are of one form."""
    memory, first = piece_of_memory()[: len(things) * each], things[0]
    shape = (len(things) * first.shape[0], *first.shape[1:]) if first.ndim else (len(things),)
    if not hasattr(first, "detach"):
        numpy = sys.modules["numpy"]
        join = numpy.concatenate if first.ndim else numpy.stack
        join(things, out=memory.view(first.dtype).reshape(shape))
    else:
        torch = sys.modules["torch"]
        join = torch.cat if first.ndim else torch.stack
        with torch.no_grad(), torch.inference_mode(False):
            join(things, out=torch.from_numpy(memory).view(first.dtype).view(shape))
    return memoryview(memory)


def _form_and_sum(thing: Any) -> tuple[Any, ...]:
    return thing.shape, thing.dtype, getattr(thing, "requires_grad", False), _sum_of(thing)


def _sum_of(thing: Any) -> list[int]:
    if not on_host(thing) or holds_objects(thing):
        return []
    whole = bytes_of(thing)
    return [checksum(whole[start : start + PIECE]) for start in range(0, len(whole), PIECE)]


def holds_objects(thing: Any) -> bool:
    return bool(getattr(getattr(thing, "dtype", None), "hasobject", False))


def version_of(tensor: Any) -> int:
    """Tensors of inference mode count no versions: their memory is compared."""
    try:
        return int(tensor._version)
    except (RuntimeError, AttributeError):
        return -1


def versions_of(things: list[Any]) -> list[int]:
    try:
        return [_DIFFERENTIATED if tensor.requires_grad else tensor._version for tensor in things]
    except (RuntimeError, AttributeError):
        return [version_of(tensor) for tensor in things]
