"""Text to tensors without a Python step per row: bit strings, and which n-grams a text has.

The results equal those of `series.apply(…)` with a function for one row; the tests compare them. Texts are a list, a
tuple, an array (bytes, str or objects) or a pandas Series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotlap.engine.data.errors import DataMismatch
from hotlap.engine.data.readers import unmasked

Array = np.ndarray[Any, Any]
Texts = Any  # a list or tuple of str or bytes, an array, or a Series: pandas is not imported for its type
ROWS_AT_A_TIME = 4096  # keeps the pieces a conversion goes through in the processor's cache
LARGEST_TABLE = 2**24  # of n-gram numbers; beyond it they are looked up by search


def bits(texts: Texts, dtype: torch.dtype = torch.bool) -> Tensor:
    """Return `[rows, width]` for strings of '0' and '1' that all have the same length."""
    letters = letter_rows(unmasked(texts))
    out = torch.empty(letters.shape, dtype=dtype)
    for start in range(0, len(letters), ROWS_AT_A_TIME):
        block = letters[start : start + ROWS_AT_A_TIME]
        ones = block == ord("1")
        if not (ones | (block == ord("0"))).all():
            raise wrong_letter(block, start)
        out[start : start + len(block)] = torch.from_numpy(ones)
    return out


def letter_rows(texts: Texts) -> Array:
    """Return the letters' numbers as `[rows, width]`; a view if the texts are already an array of bytes."""
    if isinstance(texts, np.ndarray) and texts.dtype.kind == "S" and texts.ndim == 1:
        letters = byte_rows(texts)
        short = np.flatnonzero(letters[:, -1:] == 0)
        if len(short) == len(letters) and not letters.any():
            return letters[:, :0]
        if len(short):
            raise DataMismatch(f"row {short[0]} has {len(texts[short[0]])} letters, not {letters.shape[1]}")
        return letters
    listed = text_list(texts)
    lengths = set(map(len, listed))
    if len(lengths) > 1:
        width = len(listed[0])
        row = next(row for row, value in enumerate(listed) if len(value) != width)
        raise DataMismatch(f"row {row} has {len(listed[row])} letters, row 0 has {width}; all need the same number")
    flat, _ = flattened(listed)
    return flat.reshape(len(listed), -1) if listed else flat.reshape(0, 0)


def byte_rows(texts: Array) -> Array:
    return np.ascontiguousarray(texts).view(np.uint8).reshape(len(texts), texts.dtype.itemsize)


def wrong_letter(block: Array, start: int) -> DataMismatch:
    row, place = np.argwhere((block != ord("0")) & (block != ord("1")))[0]
    letter = chr(block[row, place])
    return DataMismatch(f"row {start + row} has {letter!r} at place {place}; a bit string has only '0' and '1'")


def text_list(texts: Texts) -> list[str]:
    """Return the texts as a list of str; an error names the row of anything but text."""
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):
        raise DataMismatch(
            f"a {type(texts).__name__} is a table of columns; give one column, table['name'], "
            f"or for ngrams a tuple of columns, (table['first'], table['last'])"
        )
    refuse_set(texts, "texts")
    given = texts.tolist() if hasattr(texts, "tolist") else texts
    if isinstance(given, str | bytes):
        raise DataMismatch(f"{given!r:.60} is one text; give a list of texts, [text] for one row")
    values = list(given)
    if values and isinstance(values[0], bytes):
        values = decoded(values)
    if set(map(type, values)) - {str}:
        row = next((row for row, value in enumerate(values) if not isinstance(value, str)), None)
        if row is None:  # all are kinds of str, such as numpy's
            return list(map(str, values))
        kind = type(values[row]).__name__
        raise DataMismatch(f"row {row} is {values[row]!r} of type {kind}, not text; convert it first")
    return values


def refuse_set(values: Any, what: str) -> None:
    if isinstance(values, set | frozenset):
        raise DataMismatch(f"the {what} are a set, whose order changes from run to run; give a list: sorted(…)")


def decoded(values: list[Any]) -> list[str]:
    done: list[str] = []
    try:
        done.extend(value.decode() for value in values)
    except (UnicodeDecodeError, AttributeError) as error:
        wrong = values[len(done)]
        kind = type(wrong).__name__
        why = ", not UTF-8; decode it" if isinstance(wrong, bytes) else f" of type {kind}, not bytes; convert it"
        raise DataMismatch(f"row {len(done)} is {wrong!r:.60}{why} first") from error
    return done


def flattened(listed: list[str]) -> tuple[Array, Array]:
    """Return the letters of all texts in one array, and the length of each text."""
    joined = "".join(listed)
    lengths = np.fromiter(map(len, listed), dtype=np.int64, count=len(listed))
    if joined.isascii():
        return np.frombuffer(joined.encode("ascii"), dtype=np.uint8), lengths
    return np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32), lengths


def ngrams(
    texts: Texts | Sequence[Texts], vocabulary: Sequence[str], n: int = 2, dtype: torch.dtype = torch.bool
) -> Tensor:
    """Return which of the n-grams each text has, as `[rows, len(vocabulary)]`; a tuple of columns is joined by row."""
    check_vocabulary(vocabulary, n)
    flat, lengths = joined_columns(texts)
    out = torch.zeros((len(lengths), len(vocabulary)), dtype=dtype if numpy_has(dtype) else torch.bool)
    if len(flat) < n:
        return out.to(dtype)
    places, rows = gram_places(flat, lengths, n)
    numbers = NgramIndex(vocabulary, n).numbers(flat, places)
    known = numbers >= 0
    cells = rows[known] * len(vocabulary) + numbers[known]
    out.view(-1).numpy()[cells] = 1
    return out.to(dtype)


def numpy_has(dtype: torch.dtype) -> bool:
    try:
        torch.empty(0, dtype=dtype).numpy()
    except TypeError:
        return False
    return True


def grams_in(texts: Texts | Sequence[Texts], n: int = 2) -> list[str]:
    """Return every n-gram that occurs, sorted: a vocabulary for `ngrams`."""
    flat, lengths = joined_columns(texts)
    if len(flat) < n:
        return []
    places, _ = gram_places(flat, lengths, n)
    letters = np.stack([flat[places + offset] for offset in range(n)], axis=1)
    return sorted("".join(map(chr, gram)) for gram in np.unique(letters, axis=0).tolist())


def check_vocabulary(vocabulary: Sequence[str], n: int) -> None:
    refuse_set(vocabulary, "n-grams of the vocabulary")
    if isinstance(vocabulary, Mapping) or hasattr(vocabulary, "columns"):
        raise DataMismatch(f"the vocabulary is a {type(vocabulary).__name__}; give its n-grams as a list, in order")
    if n < 1 or not len(vocabulary):
        raise DataMismatch(f"n is {n} and the vocabulary has {len(vocabulary)} n-grams; both must be at least 1")
    for gram in vocabulary:
        if not isinstance(gram, str):
            raise DataMismatch(f"{gram!r} in the vocabulary is of type {type(gram).__name__}, not text")
        if len(gram) != n:
            raise DataMismatch(f"{gram!r} in the vocabulary has {len(gram)} letters, but n is {n}")
    if len(set(vocabulary)) != len(vocabulary):
        raise DataMismatch("the vocabulary has the same n-gram twice; keep one of each")


def joined_columns(texts: Texts | Sequence[Texts]) -> tuple[Array, Array]:
    several = isinstance(texts, tuple) and not all(isinstance(text, str | bytes) for text in texts)
    columns: list[Any] = [unmasked(column) for column in (texts if several else [texts])]
    if all(isinstance(column, np.ndarray) and column.dtype.kind == "S" and column.ndim == 1 for column in columns):
        fixed = fixed_width(columns)
        if fixed is not None:
            return fixed
    listed = [text_list(column) for column in columns]
    if len({len(column) for column in listed}) > 1:
        raise DataMismatch(f"columns need the same number of rows, not {[len(column) for column in listed]}")
    if len(listed) == 1:
        return flattened(listed[0])
    lengths = sum(np.fromiter(map(len, column), dtype=np.int64, count=len(column)) for column in listed)
    flat, _ = flattened(list(map("".join, zip(*listed, strict=True))))
    return flat, np.asarray(lengths)


def fixed_width(columns: Sequence[Array]) -> tuple[Array, Array] | None:
    """Return letters and lengths of arrays of bytes, without their padding; None if they are not plain ASCII."""
    if len({len(column) for column in columns}) > 1:
        raise DataMismatch(f"columns need the same number of rows, not {[len(column) for column in columns]}")
    views = [byte_rows(column) for column in columns]
    letters = np.concatenate(views, axis=1)
    real = np.concatenate([not_padding(view) for view in views], axis=1)
    flat = letters[real]
    return None if (flat > 127).any() else (flat, real.sum(axis=1))


def not_padding(view: Array) -> Array:
    """Mark everything up to the last letter that is not zero: a zero inside a text belongs to it."""
    real = view != 0
    if view.shape[1] > 1 and (real[:, 1:] & ~real[:, :-1]).any():
        real = np.logical_or.accumulate(real[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(real)


def gram_places(flat: Array, lengths: Array, n: int) -> tuple[Array, Array]:
    """Return where each n-gram within one text starts, and the row of that text."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    places = np.flatnonzero(rows[: len(rows) - n + 1] == rows[n - 1 :])
    return places, rows[places]


class NgramIndex:
    """The place of an n-gram in the vocabulary, by a table over the letters that occur in it."""

    def __init__(self, vocabulary: Sequence[str], n: int) -> None:
        self.n = n
        flat, _ = flattened(list(vocabulary))
        self.letters = np.unique(flat).astype(np.int64)
        self.base = len(self.letters) + 1  # number 0: a letter that is in no n-gram
        if self.base**n >= 2**63:
            raise DataMismatch(f"{n}-grams over {len(self.letters)} letters cannot be numbered; use a smaller n")
        codes = self._codes(flat, np.arange(0, len(flat), n))
        self.order = np.argsort(codes)
        self.sorted = codes[self.order]
        self.table: Array | None = None
        if self.base**n <= LARGEST_TABLE:
            self.table = np.full(self.base**n, -1, dtype=np.int64)
            self.table[codes] = np.arange(len(codes))

    def numbers(self, flat: Array, places: Array) -> Array:
        codes = self._codes(flat, places)
        if self.table is not None:
            return np.asarray(self.table[codes])
        found = np.searchsorted(self.sorted, codes).clip(max=len(self.sorted) - 1)
        return np.where(self.sorted[found] == codes, self.order[found], -1)

    def _codes(self, flat: Array, places: Array) -> Array:
        small = self._small(flat)
        codes = small[places]
        for offset in range(1, self.n):
            codes = codes * self.base + small[places + offset]
        return codes

    def _small(self, flat: Array) -> Array:
        """Number every letter 1 … base - 1, or 0 if no n-gram has it."""
        if flat.dtype == np.uint8:
            known = np.zeros(256, dtype=np.int64)
            inside = self.letters[self.letters < 256]
            known[inside] = np.arange(1, len(inside) + 1)
            return np.asarray(known[flat])
        found = np.searchsorted(self.letters, flat).clip(max=len(self.letters) - 1)
        return np.where(self.letters[found] == flat, found + 1, 0)
