"""Which existing objects are plain: numbers, text, tensors, arrays, images, tables, and containers of these."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from enum import Enum
from fractions import Fraction
from itertools import chain
from operator import itemgetter
from pathlib import PurePath
from re import Match, Pattern
from struct import pack
from types import FunctionType
from typing import Any
from uuid import UUID

DEEPEST = 12
ATOMS: tuple[type, ...] = (
    *(int, float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range, slice),
    *(datetime, date, time, timedelta, Fraction, UUID, Pattern, Match),
)
PARTED = (slice, datetime, time)  # atoms that may hold objects of the program
TIME_ZONES = frozenset("datetime zoneinfo pytz dateutil".split())  # modules
CONTAINERS: tuple[type, ...] = (list, tuple, dict, set, frozenset, deque, OrderedDict, Counter, bytearray)
# Types of libraries, by name, so that the libraries need not be imported.
ARRAYS = {
    "torch.Tensor",
    "torch.nn.parameter.Parameter",
    "numpy.ndarray",
    "numpy.memmap",
}
OTHER_ATOMS = {
    *(f"torch.{name}" for name in "dtype device layout memory_format Size finfo iinfo".split()),
    *(f"numpy.{name}" for name in "dtype finfo iinfo".split()),
    *(
        f"numpy.dtypes.{name}"
        for name in "Float32DType Float64DType Int64DType UInt8DType BoolDType Int32DType".split()
    ),
    *("pandas.Timestamp pandas._libs.tslibs.timestamps.Timestamp".split()),
    *("pandas._libs.tslibs.timedeltas.Timedelta pandas._libs.missing.NAType".split()),
}
TABLES = {
    *(f"pandas.core.frame.{name}" for name in ("DataFrame",)),
    *(f"pandas.{name}" for name in "DataFrame Series Index RangeIndex DatetimeIndex MultiIndex Categorical".split()),
    "pandas.core.series.Series",
    *(f"pandas.core.indexes.base.{name}" for name in ("Index",)),
    "pandas.core.indexes.range.RangeIndex",
    *(f"h5py._hl.{name}" for name in "files.File group.Group dataset.Dataset attrs.AttributeManager".split()),
    *(f"pyarrow.lib.{name}" for name in "Table ChunkedArray".split()),
}


class _remembered:  # noqa: N801 it decorates
    """Caches a question about a class. A plain dictionary is twice as fast as functools' cache."""

    def __init__(self, question: Callable[[type], bool]) -> None:
        self._question, self._answers = question, dict[type, bool]()

    def __call__(self, kind: type) -> bool:
        found = self._answers.get(kind)
        if found is None:
            found = self._answers[kind] = self._question(kind)
        return found

    def cache_clear(self) -> None:
        self._answers.clear()


def type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@_remembered
def is_array(kind: type) -> bool:
    return type_name(kind) in ARRAYS


@_remembered
def is_atom(kind: type) -> bool:
    """Return whether values of this class are immutable, with only the methods of their library."""
    if kind in ATOMS:
        return True
    if issubclass(kind, PurePath):
        return kind.__module__.partition(".")[0] == "pathlib"
    if issubclass(kind, Enum):
        return kind.__module__.partition(".")[0] in ("torch", "torchvision", "PIL")
    numbers = sys.modules.get("numpy")
    if numbers is not None and issubclass(kind, numbers.generic | numbers.dtype):
        return kind.__module__.partition(".")[0] == "numpy" and kind.__name__ not in ("void", "VoidDType")
    return type_name(kind) in OTHER_ATOMS


def has_usual_parts(atom: Any) -> bool:
    """Return whether an atom holds no object that may change or run code: tensors in a slice, or a time zone."""
    if type(atom) is slice:
        return all(type(part) in (int, type(None)) for part in (atom.start, atom.stop, atom.step))
    zone = atom.tzinfo if isinstance(atom, datetime | time) else None
    return zone is None or type(zone).__module__.partition(".")[0] in TIME_ZONES


def same_atom(left: Any, right: Any) -> bool:
    """Return whether two atoms of one type are the same: 0.0 is not -0.0, and NaN equals the NaN of the same bits."""
    if isinstance(left, int | str | bytes):
        return bool(left == right)
    if isinstance(left, float):
        return pack("d", left) == pack("d", right)
    if isinstance(left, complex):
        return pack("dd", left.real, left.imag) == pack("dd", right.real, right.imag)
    if isinstance(left, Pattern):  # its repr is truncated
        return (left.pattern, left.flags) == (right.pattern, right.flags)
    if isinstance(left, Match):
        return left.string == right.string and left.regs == right.regs and same_atom(left.re, right.re)
    if hasattr(left, "tobytes"):
        return bool(left.dtype == right.dtype and left.tobytes() == right.tobytes())
    return repr(left) == repr(right)


@_remembered
def is_table(kind: type) -> bool:
    name = type_name(kind)
    return (
        name in TABLES or (name.startswith("PIL.") and kind.__name__.endswith("Image")) or name.startswith("PIL.Jpeg")
    )


def is_plain(obj: Any, depth: int = 0) -> bool:
    """Return whether the object and everything inside it is plain."""
    kind = type(obj)
    if is_atom(kind) or kind is bytearray:
        return has_usual_parts(obj)
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
        return not any(issubclass(kind, PARTED) for kind in kinds) or all(map(has_usual_parts, values))
    several = list(values)
    if kinds in ({tuple}, {list}):
        lengths = set(map(len, several))
        if len(lengths) == 1 and (length := lengths.pop()):
            return all(_all_plain(list(map(itemgetter(at), several)), depth + 1) for at in range(length))
        return depth < DEEPEST and _all_plain(list(chain.from_iterable(several)), depth + 1)
    if len(several) > 1 and all(is_array(type(element)) for element in several):
        return not any(_holds_objects(element) or _has_attributes(element) for element in several)
    return all(is_plain(element, depth) for element in several)
