"""Many tensors or arrays of one container, compared together, or row by row if each belongs to one item."""

from __future__ import annotations

import sys
from typing import Any

from hotlap.loading.bits import PIECE, bytes_of, checksum, on_host, piece_of_memory
from hotlap.loading.row_sums import RowSums

_DIFFERENTIATED = -2  # in place of the version of a tensor that requires a gradient


class Group:
    """A snapshot of many tensors or arrays of one container, by version and memory."""

    name = "a tensor or array"

    def __init__(self, arrays: list[Any], of: int = 0) -> None:
        self._arrays, self.of = arrays, of
        self._versions = versions_of(arrays)
        per_part = max(1, PIECE // max(1, int(arrays[0].nbytes)))
        self._parts = [arrays[start : start + per_part] for start in range(0, len(arrays), per_part)]
        self._joined = [can_be_joined(part) for part in self._parts]
        self._sums = self._sums_now()
        self.bytes = sum(int(array.nbytes) for array in arrays if on_host(array))

    def _sums_now(self) -> list[Any]:
        return [_sum_of_several(*part) for part in zip(self._parts, self._joined, strict=True)]

    def rows(self, total: int) -> RowSums | ElementSums | None:
        if len(self._arrays) < total:
            return None
        size = int(self._arrays[0].nbytes)
        is_even = size <= PIECE and can_be_joined(self._arrays, most=None)
        return GroupRows(self._arrays, size) if is_even else ElementSums(self._arrays)

    def has_moved(self) -> bool:
        return False

    def differs(self) -> bool:
        return versions_of(self._arrays) != self._versions or self._sums_now() != self._sums


class GroupRows(RowSums):
    """Row sums in which each tensor or array is the row of one item."""

    def __init__(self, arrays: list[Any], size: int) -> None:
        self._arrays, self._are_tensors = arrays, hasattr(arrays[0], "requires_grad")
        self._shape, self._dtype = arrays[0].shape, arrays[0].dtype
        super().__init__(len(arrays), size)

    def _taken(self, rows: Any) -> Any:
        return _put_together(list(map(self._arrays.__getitem__, rows.tolist())), self._size)

    def differ(self, rows: Any) -> bool:
        arrays = list(map(self._arrays.__getitem__, rows.tolist()))
        if any(array.shape != self._shape or array.dtype != self._dtype for array in arrays):
            return True
        if self._are_tensors and any(array.requires_grad for array in arrays):
            return True
        try:
            return super().differ(rows)
        except (RuntimeError, ValueError, TypeError):  # the form has changed
            return True


class ElementSums:
    """Checksums per element, for arrays that are large or differ in form."""

    def __init__(self, arrays: list[Any]) -> None:
        self._arrays, self._sums = arrays, list(map(_form_and_sum, arrays))

    def differ(self, rows: Any) -> bool:
        return any(_form_and_sum(self._arrays[row]) != self._sums[row] for row in rows.tolist())


def can_be_joined(arrays: list[Any], most: int | None = PIECE) -> bool:
    """Return whether all have one form on the host, to be joined in cache-sized memory and summed at once."""
    first = arrays[0]
    if holds_objects(first) or first.nbytes == 0:
        return False
    if most is not None and len(arrays) * first.nbytes > most:
        return False
    return all(
        type(array) is type(first) and array.shape == first.shape and array.dtype == first.dtype and on_host(array)
        for array in arrays
    )


def _sum_of_several(arrays: list[Any], joined: bool) -> Any:
    if not joined:
        return list(map(_form_and_sum, arrays))
    try:
        return arrays[0].shape, arrays[0].dtype, checksum(_put_together(arrays, int(arrays[0].nbytes)))
    except (RuntimeError, ValueError, TypeError) as error:  # the form has changed
        return str(error)


def _put_together(arrays: list[Any], size: int) -> memoryview:
    """Copy arrays of one form, of `size` bytes each, into one buffer."""
    memory, first = piece_of_memory()[: len(arrays) * size], arrays[0]
    shape = (len(arrays) * first.shape[0], *first.shape[1:]) if first.ndim else (len(arrays),)
    if not hasattr(first, "detach"):
        numpy = sys.modules["numpy"]
        join = numpy.concatenate if first.ndim else numpy.stack
        join(arrays, out=memory.view(first.dtype).reshape(shape))
    else:
        torch = sys.modules["torch"]
        join = torch.cat if first.ndim else torch.stack
        with torch.no_grad(), torch.inference_mode(False):
            join(arrays, out=torch.from_numpy(memory).view(first.dtype).view(shape))
    return memoryview(memory)


def _form_and_sum(array: Any) -> tuple[Any, ...]:
    return array.shape, array.dtype, getattr(array, "requires_grad", False), _sum_of(array)


def _sum_of(array: Any) -> list[int]:
    if not on_host(array) or holds_objects(array):
        return []
    whole = bytes_of(array)
    return [checksum(whole[start : start + PIECE]) for start in range(0, len(whole), PIECE)]


def holds_objects(array: Any) -> bool:
    return bool(getattr(getattr(array, "dtype", None), "hasobject", False))


def version_of(tensor: Any) -> int:
    """Return the version of a tensor, or -1 if it has none, as in inference mode; its memory is compared then."""
    try:
        return int(tensor._version)
    except (RuntimeError, AttributeError):
        return -1


def versions_of(tensors: list[Any]) -> list[int]:
    try:
        return [_DIFFERENTIATED if tensor.requires_grad else tensor._version for tensor in tensors]
    except (RuntimeError, AttributeError):
        return [version_of(tensor) for tensor in tensors]
