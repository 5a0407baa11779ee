"""Counts the timed window."""

from __future__ import annotations

from itertools import pairwise, zip_longest
from time import perf_counter, sleep

from hotlap.observe.clock import spread
from hotlap.observe.loaders import TRAIN, LoaderCounts
from hotlap.observe.steps import Boundary
from hotlap.records.observation import EVALUATION, PHASES, Warmup

_EVALUATION = PHASES.index(EVALUATION)
POLL_SECONDS = 5.0


class Tally:
    """The timed window: its boundaries, and the counts at both ends."""

    def __init__(self) -> None:
        self._first: Boundary | None = None
        self._boundaries: list[Boundary] = []
        self._warm: list[tuple[Boundary, dict[LoaderCounts, tuple[int, int]]]] = []
        self._counts: dict[LoaderCounts, tuple[int, int]] = {}
        self._final_counts: dict[LoaderCounts, tuple[int, int]] | None = None  # None: still measuring
        self._call_sizes: list[int] = []
        self._call_size = 0
        self._called = False  # since the last backward
        self._ended_size = 0
        self.warmup = Warmup(steps=0, seconds=0.0, settled=False)
        self.skipped = 0
        self.look_steps = 0
        self.spans: dict[str, tuple[float, float]] = {}

    def warm(self, boundary: Boundary, counts: dict[LoaderCounts, tuple[int, int]]) -> None:
        self._warm.append((boundary, counts))

    def make_do_with_warmup(self) -> None:
        """Take everything after the first step as the window, because the program ended while warming up."""
        if self._warm:
            boundary, counts = self._warm[0]
            self.begin(boundary, counts, Warmup(steps=1, seconds=0.0, settled=False))
            self._boundaries = [later for later, _ in self._warm[1:]]

    def begin(self, boundary: Boundary, counts: dict[LoaderCounts, tuple[int, int]], warmup: Warmup) -> None:
        self._first, self._counts, self.warmup = boundary, counts, warmup
        self._boundaries.clear()
        self._call_sizes.clear()

    def end(self, counts: dict[LoaderCounts, tuple[int, int]], spans: dict[str, list[float]]) -> None:
        self._final_counts = counts
        self.spans = {name: (row[0], row[1]) for name, row in spans.items()}

    def add(self, boundary: Boundary) -> None:
        self._boundaries.append(boundary)

    def called_with(self, size: int) -> None:
        """Note a training call of the root module; the first before each backward shows the size of a (micro-)batch."""
        if not self._called:
            self._called = True
            self._call_size += size

    def differentiated(self) -> None:
        self._called = False

    def optimizer_ended(self) -> None:
        self._ended_size = self._ended_size or self._call_size
        self._call_size, self._called = 0, False

    def close_step(self) -> None:
        self._call_sizes.append(self._ended_size)
        self._ended_size = 0

    @property
    def steps(self) -> int:
        return len(self._boundaries)

    @property
    def steps_seen(self) -> float:
        """Return the steps recorded in detail; only in these were syncs and copies counted."""
        if self._first is None or not self._boundaries:
            return 0.0
        first, last = self._first, self._boundaries[-1]
        return self.steps * (last.seen - first.seen) / max(1, last.optimizer_steps - first.optimizer_steps)

    @property
    def seconds(self) -> float:
        return (self._boundaries[-1].at - self._first.at) / 1e9 if self._first and self._boundaries else 0.0

    def step_ms(self) -> tuple[float, ...]:
        if self._first is None:
            return ()
        return tuple((end.at - start.at) / 1e6 for start, end in pairwise([self._first, *self._boundaries]))

    def evaluation_ms(self) -> tuple[float, ...]:
        """Return the evaluation within each step; none if there was no evaluation in the window."""
        if self._first is None:
            return ()
        totals = [boundary.totals[_EVALUATION] for boundary in (self._first, *self._boundaries)]
        return tuple((end - start) / 1e6 for start, end in pairwise(totals)) if totals[0] != totals[-1] else ()

    def device_step_ms(self) -> tuple[float, ...]:
        """Return the mean step time between the recorded CUDA events. Waits by polling, without a sync."""
        events = [
            (number, boundary.event) for number, boundary in enumerate(self._boundaries) if boundary.event is not None
        ]
        patience = perf_counter() + POLL_SECONDS
        while events and not events[-1][1].query():
            if perf_counter() > patience:
                return ()
            sleep(0.001)
        return tuple(start.elapsed_time(end) / (j - i) for (i, start), (j, end) in pairwise(events))

    def shares(self, names: list[str]) -> dict[str, float]:
        if self._first is None or not self._boundaries:
            return {}
        spent = self._spent()
        total = sum(spent) or 1.0
        return {name: time / total for name, time in zip(names, spent, strict=False)}

    def _spent(self) -> list[float]:
        assert self._first is not None
        first, last = self._first, self._boundaries[-1]
        return spread(_since(first.totals, last.totals), _since(first.fed, last.fed), _since(first.unseen, last.unseen))

    def batches_and_samples(self, seen: list[LoaderCounts]) -> tuple[int, int]:
        now = self._final_counts or {loader: (loader.batches, loader.samples) for loader in seen}
        training = [loader for loader in now if loader.role == TRAIN]
        batches = sum(now[loader][0] - self._counts.get(loader, (0, 0))[0] for loader in training)
        samples = sum(now[loader][1] - self._counts.get(loader, (0, 0))[1] for loader in training)
        if not batches:
            known = [size for size in self._call_sizes[: self.steps] if size]  # of the steps recorded in detail
            return 0, round(self.steps * sum(known) / len(known)) if known else 0
        return batches, samples

    def training_seconds(self) -> float:
        """Return the length of the window without its evaluations, because throughput is that of training."""
        if self._first is None or not self._boundaries:
            return 0.0
        return self.seconds - self._spent()[_EVALUATION] / 1e9

    def backwards_per_step(self) -> float:
        if self._first is None or not self._boundaries:
            return 0.0
        return (self._boundaries[-1].backwards - self._first.backwards) / self.steps


def _since(first: list[int], last: list[int]) -> list[int]:
    """Return what was added; `first` may be shorter, because spans may begin later."""
    return [end - start for start, end in zip_longest(first, last, fillvalue=0)]
