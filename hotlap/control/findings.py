"""The data that deciding works with and produces: candidates, alternating blocks, and trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hotlap.control.arms import Arm
from hotlap.control.ratio import Faster
from hotlap.records.decisions import BlockTrial


@dataclass
class Candidate:
    """Entries that are switched together."""

    names: Arm
    prepares: float = 0.0  # seconds
    reach: float = 0.0  # usual gain, as a share of the possible gain
    is_possible: Callable[[], bool] = lambda: True  # whether this machine has what it needs, asked once training
    is_ready: Callable[[], bool] = lambda: True  # whether nothing is being prepared for it beside the training


class LoaderEntries(Protocol):
    """The entries that change how batches are made. Each starts by itself, loader by loader, unless held back."""

    def applied(self) -> Arm: ...

    def wait(self) -> None:
        """Forget which entries have waited, and start watching anew."""
        ...

    def has_waited(self) -> bool:
        """Return whether an applied entry waited, so that steps without it were timed."""
        ...

    def is_coming(self) -> bool:
        """Return whether batches are being cached, to be used once all of them are."""
        ...

    def seconds_keeping(self) -> float:
        """Return the seconds that the program has spent so far waiting for batches to be cached."""
        ...

    def off(self) -> None: ...


@dataclass
class Turns:
    arm: Arm
    without: list[float]  # seconds per step
    with_: list[float]


@dataclass
class Findings:
    tried: list[BlockTrial] = field(default_factory=list)
    after: float | None = None  # seconds per step, when it was last compared
    by_batches: float = 1.0  # times as fast: by batches made another way …
    by_steps: float = 1.0  # … and by what is switched between steps
    on: Arm = frozenset()
    ever_on: Arm = frozenset()
    steps: int = 0  # ticks
    began: float = 0.0
    is_over: bool = False

    @property
    def ratio(self) -> float:
        return self.by_batches * self.by_steps


def times_as_fast(before: float, found: Faster, was_on: bool, is_on: bool, over_nothing: bool) -> float:
    """Return how many times as fast steps are now than with nothing on; a trial compares with what else is on."""
    if over_nothing:
        return found.ratio if is_on else 1.0
    if was_on:
        return before if is_on else before / found.ratio
    return before * found.ratio if is_on else before


def of_batches(found: Faster) -> str:
    if found.low > 1.0 or found.high < 1.0:
        return _verdict(found, kept=True)
    return f"{_verdict(found, kept=True)}: no clear difference, and not slower"


def joined(candidates: list[Candidate]) -> Arm:
    return frozenset().union(*(candidate.names for candidate in candidates))


def tried_of(
    names: Arm,
    base: Arm,
    began: int,
    without: list[float],
    with_: list[float],
    found: Faster | None,
    kept: bool,
    cost: float,
    why: str,
) -> BlockTrial:
    return BlockTrial(
        names=tuple(sorted(names)),
        on_top_of=tuple(sorted(base)),
        at_step=began,
        without=tuple(without),
        with_=tuple(with_),
        ratio=None if found is None else found.ratio,
        low=None if found is None else found.low,
        high=None if found is None else found.high,
        kept=kept,
        cost=round(cost, 4),
        why=why or _verdict(found, kept),
    )


def _verdict(found: Faster | None, kept: bool) -> str:
    if found is None:
        return "not measured"
    measured = f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}] times as fast"
    return measured if kept else f"{measured}, which is no clear gain"
