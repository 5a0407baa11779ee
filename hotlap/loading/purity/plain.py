"""Which existing objects are plain: numbers, text, tensors, arrays, images, tables, and containers of these."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from operator import itemgetter
from types import FunctionType
from typing import Any

from hotlap.loading.purity.pure_operations import CONTAINERS, is_array, is_atom, is_table

DEEPEST = 12


def is_plain(obj: Any, depth: int = 0) -> bool:
    """Return whether the object and everything inside it is plain."""
    kind = type(obj)
    if is_atom(kind) or kind is bytearray:
        return True
    if is_table(kind):
        return _is_plain_table(obj, depth)
    if is_array(kind):
        if _has_attributes(obj):
            return False
        return not _holds_objects(obj) or (depth < DEEPEST and _all_plain(obj.reshape(-1).tolist(), depth + 1))
    if kind in CONTAINERS:
        return depth < DEEPEST and _all_plain(elements(obj), depth + 1)
    return is_record(kind) and depth < DEEPEST and _all_plain(tuple(obj), depth + 1)


def elements(container: Any) -> Iterable[Any]:
    return list(chain(container, container.values())) if isinstance(container, dict) else container


def is_record(kind: type) -> bool:
    """Return whether this is a named tuple without methods of its own."""
    if not issubclass(kind, tuple) or not hasattr(kind, "_fields") or kind.__bases__ != (tuple,):
        return False
    own = {name for name, member in vars(kind).items() if isinstance(member, FunctionType | property | classmethod)}
    return own <= {"__new__", "_make", "_replace", "_asdict", "__repr__", "__getnewargs__", "__replace__"}


def _is_plain_table(table: Any, depth: int) -> bool:
    """Return whether a table is plain, including its columns of Python objects."""
    if not hasattr(table, "to_numpy"):
        return True
    columns = [column for _, column in table.items()] if getattr(table, "ndim", 1) > 1 else [table]
    mixed = [
        column for column in columns if getattr(column.dtype, "hasobject", getattr(column.dtype, "kind", "O") == "O")
    ]
    noted = getattr(table, "attrs", None)
    if isinstance(noted, dict) and not _all_plain(list(noted.values()), depth + 1):
        return False
    return all(depth < DEEPEST and _all_plain(column.tolist(), depth + 1) for column in mixed)


def _holds_objects(array: Any) -> bool:
    return bool(getattr(array.dtype, "hasobject", False))


def _has_attributes(array: Any) -> bool:
    """Return whether the program has set attributes on a tensor; those of a memory map are NumPy's."""
    return bool(getattr(array, "__dict__", None)) and not hasattr(array, "strides")


def _all_plain(values: Iterable[Any], depth: int) -> bool:
    """Return whether all values are plain; checking many of one type at once is several times as fast."""
    kinds = set(map(type, values))
    if all(map(is_atom, kinds)):
        return True
    several = list(values)
    if kinds in ({tuple}, {list}):
        lengths = set(map(len, several))
        if len(lengths) == 1 and (length := lengths.pop()):
            return all(_all_plain(list(map(itemgetter(at), several)), depth + 1) for at in range(length))
        return depth < DEEPEST and _all_plain(list(chain.from_iterable(several)), depth + 1)
    if len(several) > 1 and all(is_array(type(element)) for element in several):
        return not any(_holds_objects(element) or _has_attributes(element) for element in several)
    return all(is_plain(element, depth) for element in several)
