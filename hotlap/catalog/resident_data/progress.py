"""Reports the progress of fetching a dataset."""

from __future__ import annotations

import time

from hotlap.patch.voice import say

SAY_AFTER, SAY_AGAIN = 5.0, 10.0  # seconds


class Progress:
    """Prints a line to stderr now and then if fetching takes long."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total, self._done = name, total, 0
        self._next = time.monotonic() + SAY_AFTER

    def tell(self, more: int) -> None:
        self._done += more
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SAY_AGAIN
        share = f"{self._done / self._total:.0%}"
        say(f"resident-data has fetched {share} of the {self._total} items of {self._name}")
