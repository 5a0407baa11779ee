"""Leaves out most of the gc.collect() and empty_cache() calls that a training loop makes again and again."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from hotlap.catalog.throttled_cleanup.lines import CleanupLine, CleanupLines
from hotlap.catalog.throttled_cleanup.memory import Memory
from hotlap.runtime.site import Original, Site

MEMORY, ALL = "memory", "all"
SHORT = 0.1  # of the device's memory free, or less: then what torch keeps may be wanted elsewhere


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
    """The modules that offer the function: it is bound to several names."""
    known = [torch.cuda, torch.cuda.memory, getattr(torch, "accelerator", None), getattr(torch, "mps", None)]
    return [owner for owner in known if owner is not None and name in vars(owner)]


class Cleanup:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._places = CleanupLines()
        self._memory = Memory(site.torch)
        self._told: dict[CleanupLine, str] = {}

    def stepped(self, optimizer: Any, *_: Any) -> None:
        self._places.steps += 1
        if self._site.first_sight(optimizer):
            self._places.optimizers += 1

    def collect(self, original: Original, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        generation = args[0] if args else kwargs.get("generation", 2)
        if generation != 2:  # the young generations cost next to nothing
            return original(*args, **kwargs)
        place = self._places.here("gc.collect()")
        if self._leaves_out("gc.collect()", place, needed=self._memory.has_grown):
            return 0
        before = self._memory.held()
        found = original(*args, **kwargs)
        if self._memory.collected(before, found) and place is not None:
            place.was_of_use()
        return found

    def empty_cache(self, original: Original, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """It stops the device, and the steps after it ask the driver for memory anew: only where memory is short."""
        place = self._places.here("empty_cache()")
        if self._leaves_out("empty_cache()", place, of_use=self._memory_is_short):
            return None
        return original(*args, **kwargs)

    def _memory_is_short(self) -> bool:
        cuda = self._site.torch.cuda
        if not cuda.is_initialized():
            return True
        free, total = cuda.mem_get_info()
        return bool(free < SHORT * total)

    def synchronize(self, original: Original, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._leaves_out("synchronize()", self._places.here("synchronize()")):
            return None
        return original(*args, **kwargs)

    def _leaves_out(
        self,
        what: str,
        place: CleanupLine | None,
        of_use: Callable[[], bool] = lambda: True,
        needed: Callable[[], bool] = lambda: False,
    ) -> bool:
        if place is None or not place.leave_out(self._places.steps, of_use, self._places.optimizers, needed):
            return False
        if place not in self._told:
            self._told[place] = f"{what} at {place.name}"
            lines = ", ".join(sorted(self._told.values()))
            self._site.applied(f"{lines}: once in {place.every} times, more often only if memory grows")
        return True
