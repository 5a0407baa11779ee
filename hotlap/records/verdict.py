"""What a trial proved."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.records.plan import Risk
from hotlap.records.text_enum import TextEnum
from hotlap.records.trial import TrialStage


class Decision(TextEnum):
    KEEP = "keep"
    REJECT = "reject"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """The ratio of the throughputs of new and base, with its 95 % interval."""

    ratio: float
    low: float | None
    high: float | None
    resampled: str  # what was resampled: "processes", "blocks" or "nothing"
    noise_low: float | None  # baseline against itself, with the same number of processes
    noise_high: float | None
    faster: bool  # significant, above the minimum effect and outside the noise band
    slower: bool
    minimum: float  # smallest ratio that counts, such as 1.02
    smallest: float | None  # smallest ratio that this sample could show (80 % power)
    more: int  # processes per arm still needed to show the minimum effect; 0: enough
    more_as_measured: int = 0  # the same to show the measured ratio, where that is larger


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """The result of comparing both arms in one respect."""

    name: str  # "losses", "evaluation", "weights", "saved files" …
    passed: bool | None  # None: not known
    why: str
    left_out: tuple[str, ...] = ()  # skipped because it varies within the baseline


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """Whether training is as good as before, by the rule of its risk."""

    risk: Risk
    passed: bool | None  # None: no evidence, so the optimisation is not kept
    rule: str  # "losses bit-equal over 64 steps", "non-inferior on val_acc, margin 0.005, 3 seeds"
    why: str
    figures: tuple[tuple[str, float], ...] = ()  # the named numbers behind it
    more: int = 0  # seeds or processes still needed
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PaysOff:
    """How much longer warm-up is than the baseline's, and when the higher speed has won that back."""

    extra_seconds: float
    steps: int | None  # None: never
    seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    schema: int
    trial: str  # its name
    stage: TrialStage
    entry: str | None
    value: str | None
    decision: Decision
    why: str  # one sentence
    speed: Speed | None  # None: not measured
    gate: Gate | None
    pays_off: PaysOff | None
