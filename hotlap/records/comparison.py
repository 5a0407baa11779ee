"""The record of a comparison: whether one way of training is slower than another, and the samples behind it."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.records.text_enum import TextEnum
from hotlap.records.trial import Trial
from hotlap.records.verdict import Speed


class Result(TextEnum):
    REGRESSION = "regression"  # proven slower by at least the allowed slowdown, or it does not train
    INCONCLUSIVE = "inconclusive"
    NO_REGRESSION = "no regression"  # a slowdown beyond the allowed one is ruled out


class Kind(TextEnum):
    RUNS = "runs"
    COMMANDS = "commands"
    REVISIONS = "revisions"


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    name: str  # as the user named it
    command: tuple[str, ...]
    revision: str | None = None  # the commit
    profile: str | None = None  # id of the run that profiled it first
    samples_per_step: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    schema: int
    run: str  # id of the run folder
    kind: Kind
    base: Side
    new: Side
    max_slowdown: float  # 0.03: NEW may take three percent longer
    result: Result
    why: str  # one sentence
    speed: Speed | None  # new over base; None: nothing could be measured
    trial: Trial  # with every raw sample
    machine: str
    started: str
    seconds: float
