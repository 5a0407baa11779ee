"""The parts of the report of a tune, as plain data for all output formats."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.report.profile.page import Page
from hotlap.report.shared.parts import Bars, Table

KEPT, LEFT_OUT, INCONCLUSIVE, REJECTED, FAILED, PENDING = (
    "kept",
    "left out",  # proven alone, but not part of the plan
    "inconclusive",
    "rejected",
    "failed",  # one of its processes did not train to the end
    "not judged yet",
)
STATES = (KEPT, LEFT_OUT, INCONCLUSIVE, REJECTED, FAILED, PENDING)

FASTER, NO_SPEEDUP, UNCLEAR, UNFINISHED = "faster", "no speed-up", "inconclusive", "not finished"


@dataclass(frozen=True, slots=True)
class Interval:
    """How many times as fast; the ends are None where there was nothing to resample."""

    ratio: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One optimisation, or one of its values."""

    name: str  # "loader-workers=4"
    code: str
    risk: str
    state: str  # of STATES
    alone: Interval | None  # against the baseline
    stacked: Interval | None  # on top of what was kept before it
    gate: str  # "passed", "failed", "no evidence" or "not reached"
    rule: str
    gate_why: str
    why: str
    notes: tuple[str, ...] = ()  # when it pays off, how many more processes it needs, what it reported

    @property
    def shown(self) -> Interval | None:
        """The interval of the trial that decided."""
        return self.stacked or self.alone


@dataclass(frozen=True, slots=True)
class Figure:
    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    values: tuple[float | None, ...]  # None: not finite, or no such step


@dataclass(frozen=True, slots=True)
class Losses:
    """Mean losses over bins of steps, at most a few hundred whatever the length of the training."""

    steps: tuple[int, ...]  # the first of each bin
    last: int  # the last step of all
    curves: tuple[Curve, ...]  # before, after
    low: tuple[float | None, ...]  # the noise band: all baseline processes
    high: tuple[float | None, ...]
    facts: tuple[str, ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True, slots=True)
class Length:
    """How long the user's whole run would take."""

    facts: tuple[str, ...]
    table: Table | None


@dataclass(frozen=True, slots=True)
class Command:
    what: str
    line: str


@dataclass(frozen=True, slots=True)
class TunePage:
    run: str
    state: str  # FASTER, NO_SPEEDUP, UNCLEAR or UNFINISHED
    sentence: str
    details: tuple[str, ...]
    figures: tuple[Figure, ...]
    bars: Bars
    before_after: Table
    rows: tuple[Row, ...]
    noise: Interval | None  # the baseline against itself
    together: Interval | None  # all that is kept against the baseline
    minimum: float  # the smallest speed-up that counts
    not_tried: Table
    losses: Losses
    time: Page | None  # where the time went before
    no_time: str  # why that is missing
    length: Length
    next_steps: tuple[Command, ...]  # what to type after this tune
    commands: tuple[Command, ...]  # to reproduce it
    broken: Table  # processes that did not train to the end
    compared: Table
    not_covered: tuple[str, ...]
    files: tuple[str, ...]  # what trials did to files that were not diverted to scratch
    footer: tuple[tuple[str, str], ...]
