"""Snapshots of what is inside containers, tensors, arrays and tables, to detect changes."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from operator import is_
from types import MethodType
from typing import Any

from hotlap.loading.bits import PIECE, bytes_of, checksums, on_host
from hotlap.loading.groups import ArrayRows, Elements, Group, RowSums, holds_objects, version_of
from hotlap.loading.memory_maps import SharedRanges
from hotlap.loading.purity.plain import CONTAINERS, is_array, is_atom, is_record, is_table, same_atom
from hotlap.loading.unsuited import Unfit

SMALL = 1 << 20  # bytes of everything read
MOST_CONTAINERS = 200_000
FEW = 8  # tensors in one container that are still compared one by one
DEEPEST = 12
LARGE = 256 << 20  # bytes
LONG = 5e-3  # seconds; anything slower is timed only once


def weakly(value: Any) -> Callable[[], Any]:
    """Return a weak reference if possible; a tensor is held, since torch swaps none that has weak references."""
    if is_tensor(value):
        return lambda: value
    try:
        return weakref.WeakMethod(value) if isinstance(value, MethodType) else weakref.ref(value)
    except TypeError:
        return lambda: value


def is_tensor(value: Any) -> bool:
    return hasattr(type(value), "data_ptr")


class Contents:
    """A snapshot of what is inside containers, tensors and arrays."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self.parts: list[Part] = []
        self._texts: list[Any] = []
        self._always: list[Part] = []  # parts that are compared in full before every batch
        self.seconds = 0.0
        self.bytes = 0
        self._shared: list[Memory | Group] = []
        self._mapped = SharedRanges()

    @property
    def is_shared(self) -> bool:
        return bool(self._shared)

    def differ_shared(self) -> str | None:
        return next((part.name for part in self._shared if part.has_moved() or part.differs()), None)

    def settle(self) -> None:
        """Measure the size of everything, and how long comparing all of it takes."""
        self._seen.clear()
        self.bytes = sum(part.bytes for part in self.parts)
        large = [part for part in self.parts if isinstance(part, Memory) and part.bytes > LARGE]
        others = [part for part in self.parts if not (isinstance(part, Memory) and part.bytes > LARGE)]
        seconds = float("inf")
        for _ in range(3):  # the first run has cold caches, and other load only adds time
            began = time.perf_counter()
            self.moved() or any(part.differs() for part in others)
            seconds = min(seconds, time.perf_counter() - began)
            if seconds > LONG:
                break
        self.seconds = seconds + sum(part.seconds for part in large)  # which were read just now, and fit in no cache

    def compare_always(self, parts: list[Part], seconds: float) -> list[Part]:
        """Compare the smallest parts before every batch, as many as fit in the seconds; return the others."""
        waiting = sorted(parts, key=lambda part: part.bytes)
        self._always = []
        while waiting:
            seconds -= _seconds_to_compare(waiting[0])
            if seconds < 0.0:
                break
            self._always.append(waiting.pop(0))
        return waiting

    def always_differ(self) -> str | None:
        return next((part.name for part in self._always if part.differs()), None)

    def texts(self) -> Iterator[str]:
        return (str(text) for text in self._texts)

    def differ(self) -> str | None:
        """Compare everything, and return what has changed."""
        return self.moved() or next((part.name for part in self.parts if part.differs()), None)

    def moved(self) -> str | None:
        """Return what has moved in memory or changed its length."""
        return next((part.name for part in self.parts if part.has_moved()), None)

    def add(self, value: Any, depth: int = 0, find: Callable[[], Any] | None = None) -> None:
        """Add a value and all inside it; `find` looks the value up where the program holds it."""
        kind = type(value)
        if is_atom(kind):
            self._note_texts([value])
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        find = find or weakly(value)
        if is_array(kind):
            self.parts.append(Memory(find, id(value)))
            if self._is_shared(value):
                self._shared.append(Memory(find))
            if holds_objects(value):
                self.parts.append(ListedArray(value))
                self._add_several(value.reshape(-1).tolist(), depth)
        elif kind is bytearray:
            self.parts.append(Memory(find))
        elif is_table(kind):
            self._add_table(value, depth, find)
        elif kind in CONTAINERS or is_record(kind):
            self._add_container(value, depth)

    def _is_shared(self, array: Any) -> bool:
        return self._mapped.holds(array) or is_mapped(array)

    def _note_texts(self, values: list[Any]) -> None:
        self._texts.extend(value for value in values if isinstance(value, str) or hasattr(value, "__fspath__"))

    def _add_container(self, container: Any, depth: int) -> None:
        if len(self.parts) > MOST_CONTAINERS or depth > DEEPEST:
            raise Unfit("it holds more containers than can be checked")
        if not isinstance(container, tuple | frozenset):
            self.parts.append(ContainerContents(container))
        if type(container) is list:
            self._add_several(list(container), depth, id(container), Elements(container))
        else:
            self._add_several(listed(container), depth)

    def _add_several(self, inner: list[Any], depth: int, of: int = 0, elements: Elements | None = None) -> None:
        """Add many values at once, which is several times as fast as one by one.

        `of` is the id of the list whose elements they are or belong to, in order, and `elements` finds them there.
        """
        arrays = [element for element in inner if is_array(type(element))]
        if any(is_tensor(array) and array.is_sparse for array in arrays):
            raise Unfit("it holds sparse tensors")
        if len(arrays) > FEW:
            group = Group(elements, of) if elements and len(arrays) == len(inner) else Group(Elements(arrays))
            self.parts.append(group)
            if any(map(self._is_shared, arrays)):
                self._shared.append(group)
            inner = [element for element in inner if not is_array(type(element))]
        kinds = set(map(type, inner))
        if all(is_atom(kind) for kind in kinds):
            if any(issubclass(kind, str) or hasattr(kind, "__fspath__") for kind in kinds):
                self._note_texts(inner)
            return
        if kinds == {tuple} and len(lengths := set(map(len, inner))) == 1:
            for column in range(lengths.pop()):
                records = [record[column] for record in inner]
                self._add_several(records, depth + 1, of, elements and elements.column(column))
            return
        for element in inner:
            self.add(element, depth + 1)

    def _add_table(self, table: Any, depth: int, find: Callable[[], Any]) -> None:
        """Add an image by its pixels, or a table by its columns."""
        if hasattr(table, "tobytes") and hasattr(table, "getbands"):
            self.parts.append(Memory(find))
        elif hasattr(table, "to_numpy"):
            self.parts.append(Table(find))
            for values in columns_of(table):
                if values.dtype.hasobject:
                    self._add_several(values.tolist(), depth + 1)


def _seconds_to_compare(part: Part) -> float:
    """Return the shortest of three runs: the first has cold caches, and other load only adds time."""
    shortest = math.inf
    for _ in range(3):
        began = time.perf_counter()
        part.differs()
        shortest = min(shortest, time.perf_counter() - began)
        if shortest > LONG:
            break
    return shortest


class ContainerContents:
    """A snapshot of a container, unchanged while it holds the same objects, or equal numbers and texts."""

    def __init__(self, live: Any) -> None:
        self._live, self.name = live, f"a {type(live).__name__}"
        self._then = without_arrays(listed(live))
        self.bytes, self.of = 8 * len(self._then), id(live)

    def rows(self, total: int) -> ListedRows | None:
        """Return a comparison by rows if each item has its own element."""
        fits = type(self._live) is list and len(self._then) >= total
        return ListedRows(self._live, self._then) if fits else None

    def has_moved(self) -> bool:
        return len(self._live) != len(self._then) / (2 if isinstance(self._live, dict) else 1)

    def differs(self) -> bool:
        now, then = without_arrays(listed(self._live)), self._then
        if all(map(is_, now, then)):
            return len(now) != len(then)
        return len(now) != len(then) or not all(map(alike, now, then))


class ListedRows:
    def __init__(self, live: Sequence[Any], then: list[Any]) -> None:
        self._live, self._then = live, then

    def differ(self, rows: Any) -> bool:
        """Return whether one of these elements is another object, or another number or text."""
        numbers = rows.tolist()
        now = without_arrays(list(map(self._live.__getitem__, numbers)))
        then = list(map(self._then.__getitem__, numbers))
        return not all(map(is_, now, then)) and not all(map(alike, now, then))


class ListedArray(ContainerContents):
    """The elements of an object array, whose form is checked as for any array."""

    def rows(self, total: int) -> ListedRows | None:
        fits = self._live.ndim == 1 and len(self._then) >= total
        return ListedRows(self._live, self._then) if fits else None

    def has_moved(self) -> bool:
        return False


def without_arrays(elements: list[Any]) -> list[Any]:
    """Return the elements with their addresses in place of tensors and arrays, whose contents are compared apart."""
    kinds = set(map(type, elements))
    if not any(map(is_array, kinds)):
        return elements
    if all(map(is_array, kinds)):
        return list(map(id, elements))
    return [id(element) if is_array(type(element)) else element for element in elements]


def alike(left: Any, right: Any) -> bool:
    return left is right or (type(left) is type(right) and is_atom(type(left)) and same_atom(left, right))


class Memory:
    """A snapshot of a tensor, an array or an image, by checksums of its pieces."""

    name = "a tensor or array"

    def __init__(self, find: Callable[[], Any], of: int = 0) -> None:
        self.find, self.of = find, of
        array = find()  # held while its memory is read
        self._form = form_of(array)
        pieces = self._pieces(array)
        self.bytes = sum(map(len, pieces))
        began = time.perf_counter()
        self._sums = checksums(pieces, array)
        self.seconds = time.perf_counter() - began

    def rows(self, total: int) -> RowSums | None:
        return ArrayRows(self.find) if ArrayRows.suits(self.find(), total) else None

    def has_moved(self) -> bool:
        return form_of(self.find()) != self._form

    def _pieces(self, value: Any) -> list[Any]:
        if not on_host(value) or holds_objects(value):
            return []
        if hasattr(value, "getbands"):
            return _pieces_of_image(value)
        whole = bytes_of(value)
        return [whole[start : start + PIECE] for start in range(0, len(whole), PIECE)]

    def differs(self) -> bool:
        """Return whether the contents differ; call it only if `has_moved` is false."""
        array = self.find()  # held while its memory is read
        return checksums(self._pieces(array), array) != self._sums


def _pieces_of_image(image: Any) -> list[Any]:
    """Return the pixels of an image, its palette and its metadata."""
    whole, palette = image.tobytes(), getattr(image, "palette", None)
    colours = b"" if palette is None else f"{palette.mode} {palette.rawmode}".encode() + bytes(palette.palette)
    pieces = [whole[start : start + PIECE] for start in range(0, len(whole), PIECE)]
    return [*pieces, colours, repr(list(image.info.items())).encode()]


class Table(Memory):
    """A snapshot of a pandas object, column by column, with their types and names."""

    name = "a table"

    def __init__(self, find: Callable[[], Any]) -> None:
        super().__init__(find)
        self._kinds, self._names = kinds_of(find()), names_of(find())

    def rows(self, total: int) -> None:
        return None

    def differs(self) -> bool:
        table = self.find()
        kinds = kinds_of(table)
        if len(kinds) != len(self._kinds) or not all(map(is_, kinds, self._kinds)) or names_of(table) != self._names:
            return True
        return super().differs()

    def _pieces(self, value: Any) -> list[Any]:
        columns = columns_of(value)
        return [repr(column.tolist()).encode() if column.dtype.hasobject else bytes_of(column) for column in columns]


def columns_of(table: Any) -> list[Any]:
    columns = [column for _, column in table.items()] if getattr(table, "ndim", 1) > 1 else [table]
    labels = [getattr(table, name) for name in ("columns", "index") if hasattr(table, name)]
    return [column.to_numpy() for column in (*columns, *labels)]


def kinds_of(table: Any) -> list[Any]:
    """Return the dtypes, to compare by identity: categories in another order compare equal."""
    return list(table.dtypes) if getattr(table, "ndim", 1) > 1 else [table.dtype]


def names_of(table: Any) -> tuple[str, ...]:
    labels = (getattr(table, name, None) for name in ("columns", "index"))
    named = [repr(holder.names) for holder in (table, *labels) if hasattr(holder, "names")]
    return (repr(getattr(table, "name", None)), repr(getattr(table, "attrs", None)), *named)


def is_mapped(array: Any) -> bool:
    while getattr(array, "base", None) is not None:
        array = array.base
    return type(array).__module__ == "mmap" or type(array).__name__ == "memmap"


def form_of(value: Any) -> tuple[Any, ...]:
    """Return what changes if the memory is replaced or reshaped, or a tensor is written by its own operations."""
    if hasattr(value, "data_ptr"):
        return (version_of(value), value.data_ptr(), value.shape, value.dtype, value.requires_grad)
    if hasattr(value, "__array_interface__") and hasattr(value, "strides"):
        names = value.dtype.names  # which can be renamed in place
        return (value.__array_interface__["data"], value.shape, value.strides, value.dtype, names)
    return (getattr(value, "shape", None), getattr(value, "size", None), getattr(value, "mode", None))


def listed(container: Any) -> list[Any]:
    if isinstance(container, dict):
        return [*container, *container.values()]
    return list(container.reshape(-1) if hasattr(container, "reshape") else container)


Part = ContainerContents | Memory | Group
