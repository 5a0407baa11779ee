"""Results of a replay, lent to the program without a copy: few programs keep one until the next replay."""

from __future__ import annotations

import weakref
from typing import Any


class Lent:
    """One tensor of a capture. If the program still holds it when it is about to be overwritten, it gets a copy."""

    def __init__(self, torch: Any) -> None:
        # Older builds without CUDA lack it; nothing is replayed in them, and everything is copied.
        self._count_uses = getattr(torch._C, "_storage_Use_Count", None)
        self._is_looked_into = False
        self._outcome: Any = None
        self._storage: Any = None
        self._lent: Any = lambda: None
        self._unused = 0

    def give(self, outcome: Any) -> Any:
        if self._is_looked_into or self._count_uses is None:
            return outcome.clone()
        if outcome is not self._outcome:
            self._outcome, self._storage = outcome, outcome.untyped_storage()
            self._unused = self._uses()
        lent = outcome.detach()
        self._lent = weakref.ref(lent)
        return lent

    def is_free(self) -> bool:
        """Whether the memory may be overwritten. Once the program keeps a view of it, it never may again."""
        if self._outcome is None:
            return True
        uses, lent = self._uses(), self._lent()
        if lent is not None and uses == self._unused + 1:
            lent.data = lent.clone()
            return True
        self._is_looked_into = uses != self._unused
        return not self._is_looked_into

    def _uses(self) -> int:
        """Count the uses of the memory: ours, the program's, and views."""
        assert self._count_uses is not None
        return int(self._count_uses(self._storage._cdata))

    def forget(self) -> None:
        self._outcome = self._storage = None
        self._lent = lambda: None
