"""Arrays compared row by row, with one row for each item, and many arrays of one container compared together.

Comparing all of it before each batch takes too long; comparing the rows of the batch does not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from hotlap.loading.bits import PIECE, WORD, bytes_of, checksum, factors, is_contiguous, on_host, piece_of_memory
from hotlap.loading.purity.plain import is_array

_DIFFERENTIATED = -2  # in place of the version of a tensor that requires a gradient


class RowSums:
    """A snapshot of rows by their checksums, taken in pieces that fit into the processor's caches."""

    def __init__(self, rows: int, size: int) -> None:
        """Take the checksums of `rows` rows of `size` bytes each."""
        import numpy

        self._size = size
        self._word = next(width for width in (8, 4, 2, 1) if size % width == 0)
        self._factors = factors()[: min(size // self._word, PIECE // WORD)]
        self._most = max(1, PIECE // size)
        numbers = numpy.arange(rows)
        self._sums = numpy.concatenate([self._summed(piece) for piece in self._pieces(numbers)])

    def _taken(self, rows: Any) -> Any:
        """Return the bytes of these rows, one after the other, in memory that may be overwritten."""
        raise NotImplementedError

    def _pieces(self, rows: Any) -> list[Any]:
        return [rows[at : at + self._most] for at in range(0, len(rows), self._most)]

    def differ(self, rows: Any) -> bool:
        """Return whether one of these rows has changed."""
        return any((self._summed(piece) != self._sums[piece]).any() for piece in self._pieces(rows))

    def _summed(self, rows: Any) -> Any:
        """Return the checksum of each row: its words times odd numbers, as in `checksum`."""
        import numpy

        words = numpy.frombuffer(self._taken(rows), f"u{self._word}").reshape(len(rows), -1)
        width, sums = len(self._factors), numpy.zeros(len(rows), "u8")
        for at in range(0, words.shape[1], width):
            block = words[:, at : at + width]
            # In place if possible: allocating memory of this size takes several times as long.
            out = block if self._word == WORD else None
            products = numpy.multiply(block, self._factors[: block.shape[1]], out=out)
            sums = sums * 3 + numpy.add.reduce(products, axis=1)
        return sums


class ArrayRows(RowSums):
    def __init__(self, find: Callable[[], Any]) -> None:
        """Take the checksums of a contiguous host array; `find` looks it up where the program holds it."""
        self._find = find
        array = find()
        super().__init__(len(array), int(array.nbytes) // len(array))

    @staticmethod
    def suits(array: Any, total: int) -> bool:
        if not hasattr(array, "shape") or not len(array.shape) or array.shape[0] < max(1, total):
            return False
        return is_contiguous(array) and on_host(array) and array.nbytes > 0 and not holds_objects(array)

    def _taken(self, rows: Any) -> Any:
        import numpy

        array = self._find()  # held while its memory is read
        whole = numpy.frombuffer(bytes_of(array), "u1").reshape(-1, self._size)
        if len(rows) * self._size > PIECE:
            return whole[rows].reshape(-1)
        taken = piece_of_memory()[: len(rows) * self._size].view("u1").reshape(len(rows), self._size)
        return numpy.take(whole, rows, axis=0, out=taken, mode="clip").reshape(-1)


class Elements:
    """Arrays of a list, or of a column of its records, looked up there: NumPy resizes none with other references."""

    def __init__(self, live: Sequence[Any], columns: tuple[int, ...] = ()) -> None:
        self._live, self._columns = live, columns

    def column(self, number: int) -> Elements:
        return Elements(self._live, (*self._columns, number))

    def all(self) -> Sequence[Any]:
        return self._in_columns(self._live)

    def at(self, rows: list[int]) -> list[Any]:
        return list(self._in_columns([self._live[row] for row in rows]))

    def _in_columns(self, found: Sequence[Any]) -> Sequence[Any]:
        for column in self._columns:  # a record may have been replaced by something else meanwhile
            found = [record[column] if type(record) is tuple and column < len(record) else None for record in found]
        return found


class Group:
    """A snapshot of many tensors or arrays of one container, by version and memory."""

    name = "a tensor or array"

    def __init__(self, elements: Elements, of: int = 0) -> None:
        self._elements, self.of = elements, of
        arrays = elements.all()
        self._count, self._versions = len(arrays), versions_of(arrays)
        self._per_part = max(1, PIECE // max(1, int(arrays[0].nbytes)))
        self._joined = [can_be_joined(part) for part in self._parts(arrays)]
        self._sums = self._sums_of(arrays)
        self.bytes = sum(int(array.nbytes) for array in arrays if on_host(array))

    def _parts(self, arrays: Sequence[Any]) -> list[Sequence[Any]]:
        return [arrays[start : start + self._per_part] for start in range(0, len(arrays), self._per_part)]

    def _sums_of(self, arrays: Sequence[Any]) -> list[Any]:
        return [_sum_of_several(*part) for part in zip(self._parts(arrays), self._joined, strict=True)]

    def rows(self, total: int) -> RowSums | ElementSums | None:
        if self._count < total:
            return None
        arrays = self._elements.all()
        size = int(arrays[0].nbytes)
        is_even = size <= PIECE and can_be_joined(arrays, most=None)
        return GroupRows(self._elements, size) if is_even else ElementSums(self._elements)

    def has_moved(self) -> bool:
        return False

    def differs(self) -> bool:
        arrays = self._elements.all()
        if len(arrays) != self._count or not all(is_array(type(array)) for array in arrays):
            return True
        return versions_of(arrays) != self._versions or self._sums_of(arrays) != self._sums


class GroupRows(RowSums):
    """Row sums in which each tensor or array is the row of one item."""

    def __init__(self, elements: Elements, size: int) -> None:
        self._elements, arrays = elements, elements.all()
        self._are_tensors = hasattr(arrays[0], "requires_grad")
        self._shape, self._dtype = arrays[0].shape, arrays[0].dtype
        super().__init__(len(arrays), size)

    def _taken(self, rows: Any) -> Any:
        return _put_together(self._elements.at(rows.tolist()), self._size)

    def differ(self, rows: Any) -> bool:
        arrays = self._elements.at(rows.tolist())
        if not all(is_array(type(array)) for array in arrays):
            return True
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

    def __init__(self, elements: Elements) -> None:
        self._elements, self._sums = elements, list(map(_form_and_sum, elements.all()))

    def differ(self, rows: Any) -> bool:
        numbers = rows.tolist()
        return any(
            not is_array(type(array)) or _form_and_sum(array) != self._sums[row]
            for row, array in zip(numbers, self._elements.at(numbers), strict=True)
        )


def can_be_joined(arrays: Sequence[Any], most: int | None = PIECE) -> bool:
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


def _sum_of_several(arrays: Sequence[Any], joined: bool) -> Any:
    if not joined:
        return list(map(_form_and_sum, arrays))
    try:
        return arrays[0].shape, arrays[0].dtype, checksum(_put_together(arrays, int(arrays[0].nbytes)))
    except (RuntimeError, ValueError, TypeError) as error:  # the form has changed
        return str(error)


def _put_together(arrays: Sequence[Any], size: int) -> memoryview:
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


def versions_of(tensors: Sequence[Any]) -> list[int]:
    try:
        return [_DIFFERENTIATED if tensor.requires_grad else tensor._version for tensor in tensors]
    except (RuntimeError, AttributeError):
        return [version_of(tensor) for tensor in tensors]
