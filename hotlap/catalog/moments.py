"""Moments that are no single call: the root training modules are known, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotlap.patch.roots import Roots
from hotlap.patch.seams import Seams

RootKnown = Callable[[Any], None]
GIVE_UP = 12  # optimizer steps


class Moments:
    """Shared by the entries of one process. Costs nothing unless an entry asks."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._roots = Roots(seams)
        self._waiting: list[RootKnown] = []
        self._optimizers: dict[int, Any] = {}
        self._steps = 0

    def when_root(self, known: RootKnown) -> None:
        """known(module) for each root, between two steps, once all roots have been called: after the second step.

        A root is the outermost module *called* that owns parameters of an optimizer.
        """
        if not self._waiting:
            self._seams.stepping.subscribe(after=self._stepped)
            self._seams.calling.subscribe(before=self._called)
        self._waiting.append(known)

    def _called(self, module: Any, *_: Any) -> None:
        self._roots.called(module)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer
        self._steps += 1
        if not self._roots.tops:
            self._roots.search(
                one for each in self._optimizers.values() for group in each.param_groups for one in group["params"]
            )
        else:
            self._roots.settle()
        if self._roots.settled or self._steps >= GIVE_UP:
            self._tell()

    def _tell(self) -> None:
        self._seams.stepping.unsubscribe(self._stepped)
        self._seams.calling.unsubscribe(self._called)
        roots, waiting = self._roots.called_ones, self._waiting
        self._waiting = []
        self._optimizers.clear()
        self._roots.forget()
        for known in waiting:
            for root in roots:
                known(root)
