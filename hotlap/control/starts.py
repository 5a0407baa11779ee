"""How long loaders take to begin: from their iteration to the first batch, as the program makes it and as we do.

Starting workers can take longer than an epoch's steps, and a comparison of steps does not show it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hotlap.control.timing import Clock
from hotlap.loading.identity import ByIdentity
from hotlap.patch.seams import Seams

WORTH_SAYING = 0.1  # seconds that each start is shorter, at least …
SHORTER = 0.5  # … and at most this share of the program's own


@dataclass
class Times:
    own: list[float] = field(default_factory=list)  # seconds, of the program's own starts …
    ours: list[float] = field(default_factory=list)  # … and since its batches are made by us


class Starts:
    def __init__(self, torch: Any, seams: Seams, clock: Clock) -> None:
        self._seams, self._clock = seams, clock
        iterators = torch.utils.data.dataloader
        self._by_torch = (iterators._SingleProcessDataLoaderIter, iterators._MultiProcessingDataLoaderIter)
        self._times: ByIdentity[Times] = ByIdentity()
        self._began = 0.0
        self._awaited: tuple[int, Times, float] | None = None  # an iterator that has not given a batch

    def begin(self) -> None:
        self._seams.iterating.subscribe(before=self._iterating, after=self._iterated)

    def end(self) -> None:
        self._seams.iterating.unsubscribe(self._iterating, self._iterated)
        self._stop_waiting()

    def _iterating(self, *_: Any) -> None:
        self._began = self._clock()

    def _iterated(self, loader: Any, _: Any, __: Any, iterator: Any) -> None:
        times = self._times.get(loader)
        if times is None:
            self._times.put(loader, times := Times())
        self._stop_waiting()
        if type(iterator) in self._by_torch:
            self._awaited = (id(iterator), times, self._began)
            self._seams.fetching.subscribe(after=self._fetched)
        elif isinstance(iterator, self._by_torch[0]):  # made by us from rows in memory: batches come at once
            times.ours.append(self._clock() - self._began)

    def _stop_waiting(self) -> None:
        if self._awaited is not None:
            self._awaited = None
            self._seams.fetching.unsubscribe(self._fetched)

    def _fetched(self, iterator: Any, *_: Any) -> None:
        if self._awaited is not None and self._awaited[0] == id(iterator):
            times, began = self._awaited[1:]
            times.own.append(self._clock() - began)
            self._stop_waiting()

    @property
    def saved(self) -> float:
        """Seconds that shorter starts have saved so far."""
        return sum(min(times.own) - seconds for times in self._times.values() if times.own for seconds in times.ours)

    @property
    def sooner(self) -> float | None:
        """Seconds by which the loader that gained most begins sooner; None if that is not worth saying."""
        changes = [
            (min(times.own), sum(times.ours) / len(times.ours))
            for times in self._times.values()
            if times.own and times.ours
        ]
        before, now = max(changes, key=lambda change: change[0] - change[1], default=(0.0, 0.0))
        return before - now if before - now >= WORTH_SAYING and now <= SHORTER * before else None
