"""Snapshots of Python's and NumPy's random streams, which torch does not restore with its own."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class HostStreams:
    def __init__(self) -> None:
        self._numpy = sys.modules.get("numpy")
        self.states: tuple[Any, Any] = (random.getstate(), self._numpy and self._numpy.random.get_state())

    def have_moved(self) -> bool:
        return repr(HostStreams().states) != repr(self.states)

    def put_back(self) -> None:
        python, numpy = self.states
        random.setstate(python)
        if self._numpy is not None:
            self._numpy.random.set_state(numpy)

    @contextmanager
    def as_they_were(self) -> Iterator[None]:
        now = HostStreams()
        self.put_back()
        try:
            yield
        finally:
            now.put_back()
