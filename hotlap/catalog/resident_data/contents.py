"""Whether what a dataset holds has changed: all of it, looked at once an epoch, and its surface, at every batch."""

from __future__ import annotations

import io
import logging
import math
import os
import time
import weakref
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from operator import is_, itemgetter
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from hotlap.catalog.resident_data.names import Names
from hotlap.catalog.resident_data.sameness import Unfit
from hotlap.catalog.silence import is_standard

LEVELS, MOST_NEAR = 4, 32  # attributes of attributes, and containers and tensors: looked at with every batch
PLAIN = (str, bytes, int, float, complex, bool, type(None))
SMALL_TENSORS, SMALL_TENSOR = 1 << 20, 4096  # bytes, of all that are read ; as long as one takes besides
SLICE, MOST_THREADS = 16 << 20, 8  # bytes that a thread reads at once
FIXED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
LOOKING, LEAST_LOOKING = 0.1, 0.05  # of the time to fetch all items, spent each epoch on looking for changes; seconds
But = Mapping[int, frozenset[str]]  # id of an object → attributes that are set when an item is first fetched
NOTHING: But = MappingProxyType({})
ELSEWHERE = ("sqlite3", "multiprocessing.managers", "socket", "ssl", "multiprocessing.connection")
SHARED = "multiprocessing.sharedctypes"
HANDLING = 5e-6  # seconds that a loader takes for an item besides fetching it


class Surface:
    """Whether an attribute of a dataset was set, or one of its tensors written, since this was made.

    Asked at every batch: identities and version counters alone, of what lies near the surface.
    """

    def __init__(
        self, torch: Any, dataset: Any, but: But = NOTHING, names: Names | None = None, versions: bool = True
    ) -> None:
        self._but, self._names = but, names
        named = [] if names is None else names.values()
        self._named = named
        self._held: list[tuple[Any, list[Any]]] = []  # containers, and what was in them
        self._tensors: list[tuple[Any, int]] = []
        seen: set[int] = set()
        level: list[Any] = [dataset, *named]
        for _ in range(LEVELS):
            level = [inner for thing in level for inner in self._entered(torch, thing, seen, versions)]

    def _entered(self, torch: Any, thing: Any, seen: set[int], versions: bool) -> list[Any]:
        if isinstance(thing, torch.Tensor):
            if versions and len(self._tensors) < MOST_NEAR and not thing.is_inference():
                self._tensors.append((thing, thing._version))
            return []
        view = self._near(thing)
        if view is None or id(thing) in seen or len(self._held) >= MOST_NEAR or len(view) > MOST_NEAR:
            return []
        seen.add(id(thing))
        values = list(view)
        self._held.append((view, values))
        return values

    def moved(self) -> bool:
        if self._names is not None and not all(map(is_, self._names.values(), self._named)):
            return True
        for view, values in self._held:
            if len(view) != len(values) or not all(map(is_, view, values)):
                return True
        return any(tensor._version != version for tensor, version in self._tensors)

    def _near(self, thing: Any) -> Any:
        """A live view of what an object or a container holds."""
        if isinstance(thing, list | tuple):
            return thing
        if isinstance(thing, FIXED):
            return None
        held = thing if isinstance(thing, dict) else getattr(thing, "__dict__", None)
        if not isinstance(held, dict):
            return None
        return _Besides(held, self._but[id(thing)]) if id(thing) in self._but else held.values()


class _Besides:
    """What a dictionary holds but for some names."""

    def __init__(self, held: dict[str, Any], names: frozenset[str]) -> None:
        self._held, self._names = held, names

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Any]:
        return (value for name, value in self._held.items() if name not in self._names)


class Contents:
    """All that can be reached from a dataset, so that a change of any of it is known.

    Tensors by identity and version counter, arrays by checksum, the rest by value. What libraries hold in memory of
    their own cannot be seen. Nothing reached is kept alive but numbers, texts, and tensors in long lists.
    """

    def __init__(
        self,
        torch: Any,
        dataset: Any,
        but: But = NOTHING,
        names: Names | None = None,
        most: float = math.inf,
        read: int = SMALL_TENSORS,
        shared: bool = True,
    ) -> None:
        """Raises Unfit where it takes longer than `most` seconds of a processor; `read` bytes of tensors are read.

        And where other processes may write a tensor, unless `shared` ones are let in: torch shares those of a dataset
        that it sends to spawned workers, so that it is asked before there are any.
        """
        self._but, self._shared = but, shared
        self._late: dict[tuple[int, str], Contents] = {}
        self._torch, self._until, self._small = torch, time.thread_time() + most, read
        self._references: list[Any] = []  # while they are kept, no other object gets the id of one of them
        self._tokens: list[Any] = []
        seen: dict[int, tuple[int, Any]] = {}
        further = [dataset, *([] if names is None else names.values())]
        while further:
            thing = further.pop()
            if type(thing) in PLAIN:
                self._note(type(thing), _exact(thing))
            elif id(thing) in seen:
                self._note(seen[id(thing)][0])
            else:
                seen[id(thing)] = len(seen), thing
                self._note(type(thing).__qualname__)
                further += self._inside(thing)

    def differ(self, other: Contents) -> bool:
        late = [(one, other._late[key]) for key, one in self._late.items() if key in other._late]
        return self._tokens != other._tokens or any(one.differ(another) for one, another in late)

    def _note(self, *tokens: Any) -> None:
        if time.thread_time() > self._until:
            raise Unfit("it holds so much in memory that to look whether it was changed takes too long")
        self._tokens += tokens

    def _inside(self, thing: Any) -> Iterable[Any]:
        """Notes what the thing is, and returns what is to be looked at besides."""
        if isinstance(thing, self._torch.Tensor):
            return self._tensor(thing)
        if isinstance(thing, PurePath):  # it remembers its parts when it is first asked for them
            return [str(thing)]
        if type(thing).__module__.split(".")[0] in ("numpy", "pandas"):
            return self._arrays(thing)
        if isinstance(thing, dict):
            return [list(thing), list(thing.values()), *self._attributes(thing)]
        if isinstance(thing, list | tuple | set | frozenset | deque):
            return [*self._sequence(list(thing)), *self._attributes(thing)]
        if isinstance(thing, FIXED):
            return self._function(thing)
        return self._object(thing)

    def _identity(self, thing: Any) -> int:
        try:
            reference = weakref.ref(thing)  # the same one, as long as the thing lives
        except TypeError:
            return id(thing)
        self._references.append(reference)
        return id(reference)

    def _buffer(self, view: Any) -> None:
        """Of bytes; many are read by several threads, since zlib lets them."""
        if len(view) <= SLICE:
            self._note(zlib.crc32(view))
            return
        threads = max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1))
        slices = [view[start : start + SLICE] for start in range(0, len(view), SLICE)]
        with ThreadPoolExecutor(threads) as pool:
            for start in range(0, len(slices), threads):
                self._note(*pool.map(zlib.crc32, slices[start : start + threads]))

    # Tensors and arrays

    def _tensor(self, tensor: Any) -> Iterable[Any]:
        """A write through `.data`, or through the array it was made from, moves no version: a small one is read."""
        self._refuse_shared(tensor)
        tracked = not tensor.is_inference()
        strided = tensor.layout is self._torch.strided and not tensor.is_quantized
        self._note(self._identity(tensor), tensor._version if tracked else 0, tensor.shape)
        size = tensor.numel() * tensor.element_size() + SMALL_TENSOR
        if strided and tensor.device.type == "cpu" and (size <= self._small or not tracked):
            self._small -= size if tracked else 0
            bits = tensor.detach().contiguous().reshape(-1).view(self._torch.uint8)
            self._buffer(memoryview(bits.numpy()))
        elif not tracked:
            raise Unfit("it holds tensors of inference mode, of which it is not known whether they are written")
        return ()

    def _refuse_shared(self, tensor: Any) -> None:
        if not self._shared and tensor.device.type == "cpu" and tensor.is_shared():
            raise Unfit("it holds a tensor that other processes may write")

    def _arrays(self, thing: Any) -> Iterable[Any]:
        import numpy

        if isinstance(thing, numpy.ndarray) and not thing.dtype.hasobject:
            self._array(numpy, thing)
            return ()
        if isinstance(thing, numpy.generic):
            return [str(thing.dtype), thing.tobytes()]
        if isinstance(thing, numpy.ndarray):
            return [thing.shape, thing.reshape(-1).tolist()]
        if hasattr(thing, "to_numpy"):
            columns = [column.to_numpy() for _, column in thing.items()] if thing.ndim > 1 else [thing.to_numpy()]
            labels = [getattr(thing, name).to_numpy() for name in ("columns", "index") if hasattr(thing, name)]
            return [*columns, *labels]
        return self._object(thing)

    def _array(self, numpy: Any, values: Any) -> None:
        self._note(str(values.dtype), values.shape)
        if isinstance(values, numpy.memmap) and not values.flags.writeable:
            self._note(self._identity(values))  # a file: it would be read as a whole
        elif values.nbytes:
            self._buffer(memoryview(numpy.ascontiguousarray(values).reshape(-1).view(numpy.uint8)))

    # Containers and objects

    def _sequence(self, things: list[Any]) -> Iterable[Any]:
        """Many of one kind at once: one by one they take several times as long."""
        kinds = set(map(type, things))
        kind = kinds.pop() if len(kinds) == 1 else None
        self._note(len(things))
        if kind is float:
            self._note(array("d", things).tobytes())
        elif kind in PLAIN:
            self._note(kind, tuple(map(_exact, things)) if kind is complex else tuple(things))
        elif kind is self._torch.Tensor and len(things) > 1:
            self._tensors(things)
        elif kind in (tuple, list) and things[0] and len(set(map(len, things))) == 1:
            return [kind, *(list(map(itemgetter(at), things)) for at in range(len(things[0])))]
        elif kind is dict and things[0] and len(set(map(tuple, things))) == 1:
            return [kind, *([list(map(itemgetter(key), things)) for key in things[0]]), list(things[0])]
        elif kind is not None and kind.__module__ == "numpy" and len(things) > 1 and _are_plain_arrays(things):
            self._note(tuple([(one.shape, one.dtype.str) for one in things]), tuple(map(zlib.crc32, things)))
        else:
            return things
        return ()

    def _tensors(self, tensors: list[Any]) -> None:
        self._refuse_shared(tensors[0])
        try:
            versions = [one._version for one in tensors]
        except RuntimeError:
            raise Unfit(
                "it holds tensors of inference mode, of which it is not known whether they are written"
            ) from None
        self._note(_TheSame(tensors), versions)

    def _function(self, thing: Any) -> Iterable[Any]:
        """A method is made anew whenever it is asked for."""
        if isinstance(thing, MethodType):
            return [thing.__func__, thing.__self__]
        self._note(self._identity(thing))
        return [cell.cell_contents for cell in getattr(thing, "__closure__", None) or () if _is_full(cell)]

    def _object(self, thing: Any) -> Iterable[Any]:
        self._note(self._identity(thing))
        if isinstance(thing, logging.Logger | logging.LoggerAdapter) or is_standard(thing):
            return ()
        if isinstance(thing, io.IOBase) and not thing.closed and thing.writable():
            raise Unfit("it holds a file that may be written")
        if isinstance(thing, self._torch.nn.Module) and any(one.requires_grad for one in thing.parameters()):
            raise Unfit("it holds a model that may be trained meanwhile")
        if type(thing).__module__ in ELSEWHERE or type(thing).__module__.startswith(SHARED):
            raise Unfit(f"it holds a {type(thing).__qualname__}, behind which data may change")
        if type(thing).__module__.startswith("PIL.") and hasattr(thing, "tobytes"):
            self._note(zlib.crc32(thing.tobytes()))
        try:
            with memoryview(thing) as view:
                if not view.readonly and view.contiguous and view.nbytes:
                    self._buffer(view.cast("B"))
        except (TypeError, ValueError, BufferError):  # most things have no buffer
            pass
        return self._attributes(thing)

    def _attributes(self, thing: Any) -> list[Any]:
        """Names and values."""
        held = getattr(thing, "__dict__", None)
        slots = [name for kind in type(thing).__mro__ for name in _slots(kind)]
        found = {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
        found.update(held if isinstance(held, dict) else {})
        for name in self._but.get(id(thing), ()):
            value = found.pop(name, None)
            if isinstance(value, self._torch.Tensor) or type(value).__module__.split(".")[0] in ("numpy", "pandas"):
                self._late[id(thing), name] = Contents(self._torch, value)
        return [tuple(found), *found.values()] if found else []


class _TheSame:
    """Equal to what holds the very same things; twice as fast as their references would be."""

    def __init__(self, things: list[Any]) -> None:
        self._things = things

    def __eq__(self, other: object) -> bool:
        mine = self._things
        return isinstance(other, _TheSame) and len(mine) == len(other._things) and all(map(is_, mine, other._things))

    __hash__ = None  # type: ignore[assignment]


def _are_plain_arrays(things: list[Any]) -> bool:
    return all([hasattr(one, "flags") and one.flags.c_contiguous and not one.dtype.hasobject for one in things])  # noqa: C419


def _exact(plain: Any) -> Any:
    """Zero has a sign, and NaN is equal to itself."""
    if type(plain) is float:
        return plain.hex()
    return (plain.real.hex(), plain.imag.hex()) if type(plain) is complex else plain


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _slots(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    own = f"_{kind.__name__.lstrip('_')}"
    names = (slots,) if isinstance(slots, str) else slots
    return [
        f"{own}{name}" if name.startswith("__") and not name.endswith("__") else name
        for name in names
        if name not in ("__dict__", "__weakref__")
    ]


def most_seconds(items: int, each: float) -> float:
    """To look at a dataset of so many items that take so long to fetch."""
    return max(LEAST_LOOKING, LOOKING * items * (each + HANDLING))
