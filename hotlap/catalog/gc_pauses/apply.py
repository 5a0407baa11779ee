"""Freeze Python's garbage collector during steps: full collections run between epochs, or every so many steps."""

from __future__ import annotations

import atexit
import gc
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hotlap.patch.hidden_frames import leave_no_frame
from hotlap.runtime.site import Original, Site

WARM = 5  # optimizer steps before anything is frozen: caches and state are there by then
LATEST = 1000  # steps without a full collection
SHARE = 0.01  # of the time at most may go into our full collections
FIRST = 0.2  # seconds that the first of them is assumed to take
PYTHONS_OWN = 5000  # objects at most that Python froze, not the program: some Pythons freeze hundreds at startup
NEVER = 1_000_000_000  # young collections before a full one
PATIENCE = 0.1  # seconds to wait for a collection in another thread when the program ends


def apply(site: Site) -> None:
    pauses = Pauses(site)
    site.after(site.seams.stepping, pauses.stepped)
    site.before(site.seams.iterating, pauses.epoch_begins)


class Pauses:
    """Holds off full collections. One that runs includes the frozen objects, so it frees all garbage."""

    def __init__(self, site: Site, clock: Callable[[], float] = time.perf_counter) -> None:
        self._site, self._clock = site, clock
        self._steps = self._since_full = 0
        self._frozen = self._under_way = False
        # The last full collection. One is assumed here: an entry tried in blocks begins anew with each of them.
        self._ended = clock()
        self._began = self._ended - FIRST

    def stepped(self, *_: Any) -> None:
        self._steps += 1
        self._since_full += 1
        if self._steps == WARM:
            self._begin()
        elif self._frozen and self._since_full >= (self._site.value or LATEST):
            self._collect(limited=self._site.value is None)

    def epoch_begins(self, *_: Any) -> None:
        if self._frozen and self._since_full and self._site.value is None:
            self._collect(limited=True)

    def _begin(self) -> None:
        if not gc.isenabled():
            self._site.no_effect("the program has switched the garbage collector off")
            return
        if gc.get_freeze_count() > PYTHONS_OWN:
            self._site.no_effect("the program freezes the garbage collector itself")
            return
        self._hold_off()
        gc.freeze()  # at once; what is garbage already is freed by the next full collection
        often = f"every {self._site.value} steps" if self._site.value else "between epochs"
        self._site.applied(f"existing objects frozen, full collections {often}")

    def _hold_off(self) -> None:
        before = gc.get_threshold()
        ours = (before[0], before[1], NEVER)
        gc.set_threshold(*ours)
        gc.callbacks.append(self._collecting)
        self._frozen = True

        def undo() -> None:
            atexit.unregister(self._leave)
            self._leave()
            if gc.get_threshold() == ours:  # else the program has since chosen others
                gc.set_threshold(*before)

        atexit.register(self._leave)  # Python's last collection must find what the program left in cycles
        self._site.ledger.later(undo)
        self._site.replace(gc, "get_objects", self._with_all)
        self._site.ledger.wrap(gc, "get_referrers", self._referring)

    def _leave(self) -> None:
        """Let a collection in progress end, then unfreeze. A daemon thread that is stopped within our callback would
        leave Python collecting for ever, and the last collection would be skipped.
        """
        self._frozen = False
        deadline = time.monotonic() + PATIENCE
        while self._under_way and time.monotonic() < deadline:
            time.sleep(0.001)
        with suppress(ValueError):
            gc.callbacks.remove(self._collecting)
        gc.unfreeze()

    def _with_all(self, original: Original, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """List frozen objects too: programs look for tensors among them, and hotlap looks for the model."""
        with self._thawed():
            return original(*args, **kwargs)

    def _referring(self, original: Original) -> Original:
        """Wrap without the guard of `site.replace` or `unseen`: frames that pass the arguments on refer to them too."""

        def get_referrers(*objects: Any) -> list[Any]:
            try:
                with self._thawed():
                    found = original(*objects)
                return [referrer for referrer in found if referrer is not objects]
            except BaseException as error:
                leave_no_frame(error)
                raise

        return get_referrers

    @contextmanager
    def _thawed(self) -> Iterator[None]:
        gc.unfreeze()
        try:
            yield
        finally:
            if self._frozen:
                gc.freeze()

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        """Python calls this around every collection."""
        self._under_way = phase == "start"
        if info["generation"] != 2 or not self._frozen:
            return
        if phase == "start":
            self._began = self._clock()
            gc.unfreeze()
        else:
            gc.freeze()
            self._ended, self._since_full = self._clock(), 0

    def _collect(self, limited: bool) -> None:
        took, passed = self._ended - self._began, self._clock() - self._ended
        if gc.isenabled() and not (limited and took > SHARE * passed):
            inspect.unwrap(gc.collect)()  # another entry may have replaced it
