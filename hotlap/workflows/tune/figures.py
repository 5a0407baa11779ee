"""Single figures from samples and verdicts, to decide what to try next."""

from __future__ import annotations

from hotlap.records.trial import Trial
from hotlap.records.verdict import Verdict
from hotlap.trial.runner import BASE, NEW


def ratio_of(verdict: Verdict) -> float:
    return verdict.speed.ratio if verdict.speed is not None else 1.0


def is_harmless(verdict: Verdict) -> bool:
    """Whether a verdict shows neither a slowdown nor any harm."""
    if verdict.speed is None or verdict.speed.slower or verdict.gate is None:
        return False
    return verdict.gate.passed is not False


def speed_of(trial: Trial) -> float:
    """Return the throughput of new over base, without an interval."""
    rates = []
    for arm in (NEW, BASE):
        blocks = [block for sample in trial.of(arm) for block in sample.blocks]
        rates.append(sum(block.samples for block in blocks) / max(1e-9, sum(block.seconds for block in blocks)))
    return rates[0] / max(1e-9, rates[1])
