"""The record of a tune: the request, the trials, what is kept. Saved after every trial, so that it can be resumed."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.records.decisions import Decisions
from hotlap.records.plan import Choice, Circumstances, Outcome, Risk
from hotlap.records.trial import Trial
from hotlap.records.verdict import Verdict

VALUE = "[ :=]+([-+.0-9eE]+)"  # the usual ways in which a log gives a number


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """The user's metric: a pattern or a TensorBoard tag, or neither for `hotlap.metric(name, value)`."""

    name: str
    pattern: str | None  # regular expression over the command's output, the value in its first group
    tag: str | None  # TensorBoard tag
    higher_is_better: bool
    margin: float | None  # how much worse still counts as equal; None: derived from the spread of the baseline


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneRequest:
    """What the user requested."""

    command: tuple[str, ...]
    budget_seconds: float
    risk: Risk
    metric: Metric | None
    steps: int | None
    minimum: float  # smallest speed-up that counts, such as 1.02
    folder: str  # working directory of the command
    memory_mb: float | None = None  # for the process tree of a trial; None: limited by the machine only
    device_mb: float | None = None  # on each device; None: no limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """An optimisation to try, and the most it could gain."""

    entry: str
    code: str
    value: str | None
    risk: Risk
    most: float  # share of the step
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Screening:
    """One process that tried, as `hotlap run` does, everything that can be switched while training."""

    decisions: Decisions | None  # None: it ended before it decided
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
    full_steps: int | None  # steps of the user's whole run; None: unknown
    speedup: Verdict | None = None  # of the final trial
    observing_seconds: float = 0.0  # the part of `seconds` before the first trial
    epoch_steps: int | None = None  # steps of one epoch; None: unknown
    lasting: Verdict | None = None  # of the longer trial of what is kept; None: there was none
    screened: Screening | None = None  # None: not yet, or the budget was too short
    files: tuple[str, ...] = ()  # what trials did to files that were not diverted to scratch, one sentence each
