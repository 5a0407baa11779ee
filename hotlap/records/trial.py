"""A trial that compares two ways of training: its processes in the order they ran, with every raw sample."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.records.plan import Choice, Outcome, Risk
from hotlap.records.text_enum import TextEnum
from hotlap.records.traces import Traces


class EndReason(TextEnum):
    """How a process of a trial ended. All but MEASURED reject what was tried."""

    MEASURED = "measured"  # it trained for the requested steps, or to its own end
    TOO_SHORT = "too short"  # it ended on its own after too few steps
    OUT_OF_MEMORY = "out of memory"
    NOT_A_NUMBER = "loss not finite"
    CRASHED = "crashed"
    HUNG = "no step for too long"
    OVER_TIME = "over its time limit"
    OVER_MEMORY = "over its memory limit"
    NEVER_STEPPED = "never stepped"


class TrialStage(TextEnum):
    NOISE = "noise"  # the baseline against itself
    ALONE = "alone"
    STACKED = "stacked"  # on top of what is kept
    FINAL = "final"  # everything kept, against the baseline
    LASTING = "lasting"  # the same for an epoch, or for ten times as many steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Consecutive steps after warm-up, the unit of all statistics."""

    first: int  # number of its first step, from 0
    steps: int
    samples: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricValue:
    """A value of the user's metric."""

    name: str
    step: int  # steps taken before it was read
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One fresh process."""

    number: int  # in the order they ran, over the whole tune
    arm: str  # "base" or "new"
    choices: tuple[Choice, ...]
    seed_shift: int  # added to every seed the program sets; 0: as written
    ended: EndReason
    why: str  # the last line of an error, or a limit with its value
    warmup_steps: int
    warmup_seconds: float  # from the first step's start to the end of warm-up
    startup_seconds: float  # from the process's start to its first step
    blocks: tuple[Block, ...]
    losses: tuple[float, ...]  # one per step from the first; not finite: nan
    readings: tuple[MetricValue, ...]
    outcomes: tuple[Outcome, ...]  # what the entries report
    host_mb: float | None  # peaks
    device_mb: float | None
    seconds: float  # of the whole process
    nudge: float = 0.0  # relative size of the perturbation of every weight before the first step; 0: none
    traces: Traces | None = None  # None: only speed and losses were measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One question: is `new` faster than `base`, and harmless?"""

    schema: int
    name: str  # unique in its tune: "alone-tf32", "stacked-2-compile=default"
    stage: TrialStage
    entry: str | None  # the entry in question
    value: str | None
    base: tuple[Choice, ...]
    new: tuple[Choice, ...]
    risk: Risk  # the highest among the choices that only `new` has
    samples: tuple[Sample, ...]

    def of(self, arm: str) -> tuple[Sample, ...]:
        return tuple(sample for sample in self.samples if sample.arm == arm)
