"""What was run to compare two ways of training: processes, in the order they ran, with every raw sample."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hotlap.records.plan import Choice, Outcome
from hotlap.records.traces import Traces


class EndReason(str, Enum):
    """How a process of a trial ended. All but the first reject what was tried."""

    MEASURED = "measured"  # it trained as many steps as were asked for, or to its own end
    TOO_SHORT = "too short"  # it ended by itself before enough steps
    OUT_OF_MEMORY = "out of memory"
    NOT_A_NUMBER = "loss not finite"
    CRASHED = "crashed"
    HUNG = "no step for too long"
    OVER_TIME = "over its time limit"
    OVER_MEMORY = "over its memory limit"
    NEVER_STEPPED = "never stepped"


class Stage(str, Enum):
    NOISE = "noise"  # the baseline against itself
    ALONE = "alone"
    STACKED = "stacked"  # on top of what is kept
    FINAL = "final"  # all that is kept, against the baseline
    LASTING = "lasting"  # the same for an epoch, or for ten times as long


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Consecutive steps after warm-up: the unit of all statistics."""

    first: int  # number of its first step, from 0
    steps: int
    samples: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricValue:
    """A value of the user's metric."""

    name: str
    step: int  # steps taken when it was read
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One fresh process."""

    number: int  # in the order they ran, over the whole tune
    arm: str  # "base" or "new"
    choices: tuple[Choice, ...]
    seed_shift: int  # added to every seed the program sets; 0: as written
    ended: str  # of Ended
    why: str  # the last line of an error, a limit with its value
    warmup_steps: int
    warmup_seconds: float  # from the first step's start to the end of warm-up
    startup_seconds: float  # from the process's start to its first step
    blocks: tuple[Block, ...]
    losses: tuple[float, ...]  # one per step from the first; not finite: nan
    readings: tuple[MetricValue, ...]
    outcomes: tuple[Outcome, ...]  # what the entries say they did
    host_mb: float | None  # peaks
    device_mb: float | None
    seconds: float  # of the whole process
    nudge: float = 0.0  # relative size of the rounding added to every weight before the first step; 0: none
    traces: Traces | None = None  # None: only speed and losses were measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One question: is `new` faster than `base`, and harmless?"""

    schema: int
    name: str  # unique in its tune: "alone-tf32", "stacked-2-compile=default"
    stage: str  # of Stage
    entry: str | None  # the entry in question
    value: str | None
    base: tuple[Choice, ...]
    new: tuple[Choice, ...]
    risk: str  # of Risk: the riskiest of what `new` has and `base` has not
    samples: tuple[Sample, ...]

    def of(self, arm: str) -> tuple[Sample, ...]:
        return tuple(sample for sample in self.samples if sample.arm == arm)
