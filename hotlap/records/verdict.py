"""What a trial proved."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Decision(str, Enum):
    KEEP = "keep"
    REJECT = "reject"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Throughput of new over base, with its 95 % interval."""

    ratio: float
    low: float | None
    high: float | None
    resampled: str  # what was resampled: "processes", "blocks" or "nothing"
    noise_low: float | None  # baseline against itself, same number of processes
    noise_high: float | None
    faster: bool  # significant, above the minimum effect and outside the noise band
    slower: bool
    minimum: float  # smallest ratio that counts, such as 1.02
    smallest: float | None  # smallest ratio that this sample could have shown (80 % power)
    more: int  # processes per arm still needed to show the minimum effect; 0: enough
    more_as_measured: int = 0  # the same to show the ratio as measured, where that is larger


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that both arms were compared in."""

    name: str  # "losses", "evaluation", "weights", "saved files" …
    passed: bool | None  # None: nothing could be said
    why: str
    left_out: tuple[str, ...] = ()  # what the baseline itself does not repeat


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """Whether training is as good as before, by the rule of the risk class."""

    risk: str
    passed: bool | None  # None: no evidence, which does not keep
    rule: str  # "losses bit-equal over 64 steps", "non-inferior on val_acc, margin 0.005, 3 seeds"
    why: str
    figures: tuple[tuple[str, float], ...] = ()  # named numbers behind it
    more: int = 0  # seeds or processes still needed
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PaysOff:
    """Warm-up that is longer than the baseline's, and when the speed has won it back."""

    extra_seconds: float
    steps: int | None  # None: never
    seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    schema: int
    trial: str  # its name
    stage: str
    entry: str | None
    value: str | None
    decision: str  # of Decision
    why: str  # one sentence
    speed: Speed | None  # None: nothing was measured
    gate: Gate | None
    pays_off: PaysOff | None
