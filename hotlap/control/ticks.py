"""One tick for each iteration of the training loop, taken from the optimizer that steps least often.

A loop without an optimizer ticks by its backward passes. A new optimizer for the same parameters counts as the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import get_ident
from typing import Any

from hotlap.patch.seams import Seams

ALONE, SEVERAL = 4, 12  # steps until the clock is chosen, with one optimizer and with several
SILENT = 64  # steps of other optimizers or threads without one of the clock, until it is chosen again
NO_OPTIMIZER = 96  # backward passes without a step until they tick: a step may follow many of them


class Ticks:
    def __init__(self, seams: Seams, tick: Callable[[Any], None]) -> None:
        """`tick(optimizer)` is called for each tick, with None if there is no optimizer."""
        self._seams, self._tick = seams, tick
        self._heard: Counter[int] = Counter()
        self._clock: int | None = None
        self._since = self._backwards = self._elsewhere = 0
        self._thread: int | None = None
        self.steps = 0  # of any optimizer, or backward passes
        self.iterated = False  # a loader was iterated, or a model set to evaluate, since this was last reset …
        self.iterated_now = False  # … since the last tick

    def begin(self) -> None:
        self._seams.stepping.subscribe(after=self._stepped)
        self._seams.backward.subscribe(after=self._backward)
        self._seams.iterating.subscribe(before=self._iterating)
        self._seams.evaluating.subscribe(before=self._iterating)

    def end(self) -> None:
        self._seams.stepping.unsubscribe(self._stepped)
        self._seams.backward.unsubscribe(self._backward)
        self._seams.iterating.unsubscribe(self._iterating)
        self._seams.evaluating.unsubscribe(self._iterating)

    def _iterating(self, *_: Any) -> None:
        self.iterated = self.iterated_now = True

    def _is_elsewhere(self) -> bool:
        """Return whether this is not the thread that counts, of several that may train."""
        here = get_ident()
        if self._thread == here:
            self._elsewhere = 0
            return False
        self._elsewhere += 1
        if self._thread is not None and self._elsewhere < SILENT:
            return True
        self._thread, self._elsewhere, self._clock = here, 0, None
        self._heard.clear()
        return False

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self.steps += 1
        if self._is_elsewhere():
            return
        self._backwards, key = 0, _key(optimizer)
        self._seams.without_optimizer = False
        if self._clock is None:
            self._listen(key)
        elif key == self._clock:
            self._since = 0
            self._tick(optimizer)
        else:
            self._since += 1
            if self._since >= SILENT:
                self._clock, self._since = None, 0

    def _listen(self, key: int) -> None:
        self._heard[key] += 1
        heard = sum(self._heard.values())
        if heard >= SEVERAL or (heard >= ALONE and len(self._heard) == 1):
            self._clock = min(self._heard, key=lambda candidate: (self._heard[candidate] < 2, self._heard[candidate]))
            self._heard.clear()

    def _backward(self, *_: Any) -> None:
        self._backwards += 1
        self.steps += self._backwards > NO_OPTIMIZER
        if self._backwards > NO_OPTIMIZER and not self._is_elsewhere():
            self._seams.without_optimizer = True
            self._tick(None)


def _key(optimizer: Any) -> int:
    first = next((parameter for group in optimizer.param_groups for parameter in group["params"]), optimizer)
    return id(first)
