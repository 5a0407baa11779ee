"""Skips most of the gc.collect() and empty_cache() calls that a training loop repeats."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from hotlap.catalog.throttled_cleanup.lines import CleanupLine, CleanupLines
from hotlap.catalog.throttled_cleanup.memory import Memory
from hotlap.runtime.site import Original, Site

ALL = "all"  # the value with which waiting for the device is skipped too
SHORT = 0.1  # of the device's memory: with less free, memory that torch caches may be needed elsewhere


def apply(site: Site) -> None:
    cleanup = Cleanup(site)
    site.no_effect("no clean-up call was made in the training loop")
    site.after(site.seams.stepping, cleanup.stepped)
    site.replace(gc, "collect", cleanup.collect)
    for owner in _owners(site.torch, "empty_cache"):
        site.replace(owner, "empty_cache", cleanup.empty_cache)
    if site.value == ALL:
        for owner in _owners(site.torch, "synchronize"):
            site.replace(owner, "synchronize", cleanup.synchronize)


def _owners(torch: Any, name: str) -> list[Any]:
    """Return the modules that offer the function: it is bound to several names."""
    known = [torch.cuda, torch.cuda.memory, getattr(torch, "accelerator", None), getattr(torch, "mps", None)]
    return [owner for owner in known if owner is not None and name in vars(owner)]


class Cleanup:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._lines = CleanupLines()
        self._memory = Memory(site.torch)
        self._reports: dict[CleanupLine, str] = {}

    def stepped(self, optimizer: Any, *_: Any) -> None:
        self._lines.steps += 1
        if self._site.first_sight(optimizer):
            self._lines.optimizers += 1

    def collect(self, original: Original, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        generation = args[0] if args else kwargs.get("generation", 2)
        if generation != 2:  # the young generations cost next to nothing
            return original(*args, **kwargs)
        line = self._lines.here("gc.collect()")
        if self._skips("gc.collect()", line, needed=self._memory.has_grown):
            return 0
        before = self._memory.held()
        found = original(*args, **kwargs)
        if self._memory.collected(before, found) and line is not None:
            line.was_of_use()
        return found

    def empty_cache(self, original: Original, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run it only if memory is short: it stops the device, and later steps must request memory from the driver."""
        line = self._lines.here("empty_cache()")
        if self._skips("empty_cache()", line, of_use=self._memory_is_short):
            return None
        return original(*args, **kwargs)

    def _memory_is_short(self) -> bool:
        cuda = self._site.torch.cuda
        if not cuda.is_initialized():
            return True
        free, total = cuda.mem_get_info()
        return bool(free < SHORT * total)

    def synchronize(self, original: Original, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._skips("synchronize()", self._lines.here("synchronize()")):
            return None
        return original(*args, **kwargs)

    def _skips(
        self,
        call: str,
        line: CleanupLine | None,
        of_use: Callable[[], bool] = lambda: True,
        needed: Callable[[], bool] = lambda: False,
    ) -> bool:
        if line is None or not line.leave_out(self._lines.steps, of_use, self._lines.optimizers, needed):
            return False
        if line not in self._reports:
            self._reports[line] = f"{call} at {line.name}"
            reports = ", ".join(sorted(self._reports.values()))
            self._site.applied(f"{reports}: once in {line.every} times, more often only if memory grows")
        return True
