"""Checksums of the rows of a large array, or of many small ones, with one row for each item of a dataset.

Comparing all of it before each batch takes too long; comparing the rows of the batch does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotlap.loading.bits import PIECE, WORD, bytes_of, factors, is_contiguous, on_host, piece_of_memory


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
        return is_contiguous(array) and on_host(array) and array.nbytes > 0

    def _taken(self, rows: Any) -> Any:
        import numpy

        array = self._find()  # held while its memory is read
        whole = numpy.frombuffer(bytes_of(array), "u1").reshape(-1, self._size)
        if len(rows) * self._size > PIECE:
            return whole[rows].reshape(-1)
        taken = piece_of_memory()[: len(rows) * self._size].view("u1").reshape(len(rows), self._size)
        return numpy.take(whole, rows, axis=0, out=taken, mode="clip").reshape(-1)
