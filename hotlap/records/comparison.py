"""Whether one way of training is slower than another: what was run, and what it shows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hotlap.records.trial import Trial
from hotlap.records.verdict import Speed


class Result(str, Enum):
    REGRESSION = "regression"  # proven slower by at least what is allowed, or it does not train
    INCONCLUSIVE = "inconclusive"
    NO_REGRESSION = "no regression"  # a slowdown beyond what is allowed is ruled out


class Kind(str, Enum):
    RUNS = "runs"
    COMMANDS = "commands"
    REVISIONS = "revisions"


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    name: str  # as the user named it
    command: tuple[str, ...]
    revision: str | None = None  # the commit
    profile: str | None = None  # id of the run that looked at it first
    samples_per_step: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    schema: int
    run: str  # id of the run folder
    kind: str  # of Kind
    base: Side
    new: Side
    max_slowdown: float  # 0.03: three percent longer is still allowed
    result: str  # of Result
    why: str  # one sentence
    speed: Speed | None  # of new over base; None: nothing could be measured
    trial: Trial  # with every raw sample
    machine: str
    started: str
    seconds: float
