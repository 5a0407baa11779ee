"""Sees whether the program's code sets attributes or globals while it runs for our own purposes."""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, NamedTuple


class Store(NamedTuple):
    name: str
    of: str | None  # the local variable whose attribute it is
    is_own: bool  # an attribute of the function's first argument
    code: CodeType
    line: int


class ExecutedStores:
    def __init__(self, stores: Iterable[Store]) -> None:
        self._stores: defaultdict[CodeType, list[Store]] = defaultdict(list)
        for store in stores:
            self._stores[store.code].append(store)
        self.found: str | None = None  # what the first of them did, if it was executed

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch this thread. Attributes of an object that is only made meanwhile do not count. Where the program traces
        itself, everything counts.
        """
        every = [store for stores in self._stores.values() for store in stores]
        if not every:
            yield
            return
        if sys.gettrace() is not None:
            self._find(every[0])
            yield
            return
        collects = gc.isenabled()
        gc.collect(0)
        gc.disable()  # until the end, what is made is the youngest generation
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)
            if collects:
                gc.enable()

    def _find(self, store: Store) -> None:
        where = getattr(store.code, "co_qualname", store.code.co_name)
        self.found = self.found or f"{where} sets {store.name}"

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._executed if frame.f_code in self._stores else None

    def _executed(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            for store in self._stores[frame.f_code]:
                if store.line == frame.f_lineno and not self._is_of_a_new_object(store, frame):
                    self._find(store)
        return self._executed

    def _is_of_a_new_object(self, store: Store, frame: FrameType) -> bool:
        target = frame.f_locals.get(store.of) if store.of is not None else None
        return target is not None and any(made is target for made in gc.get_objects(generation=0))
