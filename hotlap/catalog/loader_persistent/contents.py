"""Whether a dataset was changed: a fingerprint of what it holds."""

from __future__ import annotations

import sys
import types
import zlib
from collections.abc import Mapping
from typing import Any

from hotlap.catalog.resident_data.names import Names

MOST_BYTES = 32 << 20  # read at each epoch; about 20 ms
MOST_THINGS = 200_000
PLAIN = (str, bytes, int, float, complex, bool, type(None))
FIXED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


class TooMuch(Exception):
    """Why the contents cannot be watched."""


def fingerprint(torch: Any, dataset: Any, collate: Any = None) -> int:
    """Equal as long as nothing reachable from the dataset, or named by the code that fetches, was changed."""
    return _Reading(torch).of([dataset, Names(dataset, collate).values()])


class _Reading:
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._seen: dict[int, Any] = {}  # things, kept alive so that no id is used twice
        self._bytes = self._things = 0

    def of(self, thing: Any) -> int:
        if isinstance(thing, PLAIN):
            self._count(1, 0)
            return hash((type(thing).__name__, thing))
        if isinstance(thing, FIXED):
            return hash(id(thing))
        if id(thing) in self._seen:
            return 0
        self._seen[id(thing)] = thing
        self._count(1, 0)
        return hash((type(thing).__name__, self._of_content(thing)))

    def _of_content(self, thing: Any) -> int:
        numpy = sys.modules.get("numpy")
        if isinstance(thing, self._torch.Tensor):
            return self._of_tensor(thing)
        if numpy is not None and isinstance(thing, numpy.ndarray) and thing.dtype != object:
            return self._of_buffer(thing.nbytes, lambda: numpy.ascontiguousarray(thing))
        if isinstance(thing, Mapping):
            return hash(tuple((self.of(key), self.of(value)) for key, value in thing.items()))
        if isinstance(thing, list | tuple | set | frozenset):
            return hash(tuple(self.of(each) for each in thing))
        return hash(tuple((name, self.of(value)) for name, value in _attributes(thing)))

    def _of_tensor(self, tensor: Any) -> int:
        if tensor.device.type != "cpu" or tensor.layout is not self._torch.strided or tensor.is_quantized:
            raise TooMuch("holds tensors on a device")
        view = lambda: tensor.detach().contiguous().reshape(-1).view(self._torch.uint8).numpy()  # noqa: E731
        return self._of_buffer(tensor.numel() * tensor.element_size(), view)

    def _of_buffer(self, size: int, content: Any) -> int:
        self._count(1, size)
        return zlib.crc32(content().reshape(-1).view("uint8").data) if size else 0

    def _count(self, things: int, size: int) -> None:
        self._things += things
        self._bytes += size
        if self._bytes > MOST_BYTES:
            raise TooMuch(f"holds more than {MOST_BYTES >> 20} MB in memory")
        if self._things > MOST_THINGS:
            raise TooMuch(f"holds more than {MOST_THINGS:,} things in memory")


def _attributes(thing: Any) -> list[tuple[str, Any]]:
    """Of an object of a class written in Python; what others hold cannot be seen."""
    held = getattr(thing, "__dict__", None)
    slots = [name for kind in type(thing).__mro__ for name in _slots(kind)]
    values = [(name, getattr(thing, name)) for name in slots if hasattr(thing, name)]
    return [*(held.items() if isinstance(held, dict) else ()), *values]


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (
        (slots,) if isinstance(slots, str) else tuple(name for name in slots if name not in ("__dict__", "__weakref__"))
    )
