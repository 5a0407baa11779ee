"""Checksums of the rows of a large array that has one for each item of a dataset.

All of it takes too long to be compared before each batch; the rows that the batch is made from do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotlap.loading.bits import PIECE, WORD, bytes_of, factors, is_contiguous, on_host, piece_of_memory

FEWEST = 4  # bytes of a row: shorter ones are not worth the look


class RowSums:
    def __init__(self, find: Callable[[], Any]) -> None:
        """Of a contiguous array on the host, as it is now; `find` looks it up where the program has it."""
        import numpy

        array = find()
        rows, size = len(array), int(array.nbytes) // len(array)
        self._find, self._rows, self._size = find, rows, size
        self._word = next(one for one in (8, 4, 2, 1) if size % one == 0)
        self._factors = factors()[: min(size // self._word, PIECE // WORD)]
        self._most = max(1, PIECE // size)  # rows looked at in one batch
        self._start = 0
        words = self._words(array)
        pieces = [words[at : at + self._most] for at in range(0, rows, self._most)]
        self._sums = numpy.concatenate([self._summed(piece) for piece in pieces])

    def _words(self, array: Any) -> Any:
        import numpy

        whole = numpy.frombuffer(bytes_of(array), f"u{self._word}")
        return whole.reshape(self._rows, self._size // self._word)

    @staticmethod
    def suits(array: Any, total: int) -> bool:
        if not hasattr(array, "shape") or not len(array.shape) or array.shape[0] != total:
            return False
        return is_contiguous(array) and on_host(array) and array.nbytes >= FEWEST * total

    def differ(self, rows: Any) -> bool:
        """Whether one of these rows was written into; of very many, or long ones, others are looked at each time."""
        if len(rows) > self._most:
            self._start = (self._start + self._most) % len(rows)
            rows = rows[self._start : self._start + self._most]
        array = self._find()  # held as long as its memory is read
        words = self._words(array)
        if self._word != WORD or len(rows) * self._size > PIECE:
            return bool((self._summed(words[rows]) != self._sums[rows]).any())
        import numpy

        # In memory that stays: new memory of this size takes several times as long.
        taken = piece_of_memory()[: len(rows) * self._size].view("u8").reshape(len(rows), -1)
        numpy.take(words, rows, axis=0, out=taken, mode="clip")
        numpy.multiply(taken, self._factors, out=taken)
        return not numpy.array_equal(numpy.add.reduce(taken, axis=1), self._sums[rows])

    def _summed(self, words: Any) -> Any:
        """As `checksum` does: words times odd numbers."""
        width = len(self._factors)
        total = words[:, :width] * self._factors
        sums = total.sum(axis=1)
        for at in range(width, words.shape[1], width):
            part = words[:, at : at + width]
            sums = sums * 3 + (part * self._factors[: part.shape[1]]).sum(axis=1)
        return sums
