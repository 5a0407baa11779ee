"""A whole tune: what was asked, what was tried, what is kept. Saved after every trial, so that it can go on."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.records.decisions import Decisions
from hotlap.records.plan import Choice, Circumstances, Outcome
from hotlap.records.trial import Trial
from hotlap.records.verdict import Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """The user's measure of quality. Exactly one of pattern and tag, or neither for `hotlap.metric(name, value)`."""

    name: str
    pattern: str | None  # regular expression over the command's output, the value in its first group
    tag: str | None  # of TensorBoard
    higher_is_better: bool
    margin: float | None  # how much worse still counts as not worse; None: from the baseline's own spread


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneRequest:
    """What the user asked for."""

    command: tuple[str, ...]
    budget_seconds: float
    risk: str
    metric: Metric | None
    steps: int | None
    minimum: float  # smallest speed-up that counts, such as 1.02
    folder: str  # where it runs
    memory_mb: float | None = None  # for all processes of a trial together; None: until the machine's runs out
    device_mb: float | None = None  # of each device; None: all there is


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One thing to try, and what it could gain at most."""

    entry: str
    code: str
    value: str | None
    risk: str
    most: float  # share of the step
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Screening:
    """One process in which all that can be switched while it trains was, as `hotlap run` does it."""

    decisions: Decisions | None  # None: it came to none
    outcomes: tuple[Outcome, ...]
    seconds: float  # of the process


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneRecord:
    schema: int
    run: str  # id of the run folder
    asked: TuneRequest
    started: str
    circumstances: Circumstances
    machine: str  # one line: CPU, cores, GPU
    versions: tuple[tuple[str, str], ...]
    candidates: tuple[Candidate, ...]
    not_tried: tuple[tuple[str, str], ...]  # entry, why
    trials: tuple[Trial, ...]
    verdicts: tuple[Verdict, ...]
    kept: tuple[Choice, ...]
    seconds: float  # spent so far, over all sessions
    finished: bool
    full_steps: int | None  # steps of the user's whole run, where known
    speedup: Verdict | None = None  # of the final trial
    observing_seconds: float = 0.0  # of `seconds`, those before the first trial
    epoch_steps: int | None = None  # steps of one epoch, where known
    lasting: Verdict | None = None  # of the long trial of what is kept; None: there was none
    screened: Screening | None = None  # None: not yet, or there was no time
    files: tuple[str, ...] = ()  # what trials did to files past our diversion, one sentence each
