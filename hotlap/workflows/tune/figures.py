"""What samples and verdicts show, as numbers to go by."""

from __future__ import annotations

from hotlap.records.trial import Trial
from hotlap.records.verdict import Verdict
from hotlap.trial.runner import BASE, NEW


def ratio_of(verdict: Verdict) -> float:
    return verdict.speed.ratio if verdict.speed is not None else 1.0


def is_harmless(verdict: Verdict) -> bool:
    """Not shown to be slower, and no harm seen."""
    if verdict.speed is None or verdict.speed.slower or verdict.gate is None:
        return False
    return verdict.gate.passed is not False


def speed_of(trial: Trial) -> float:
    """Throughput of new over base, as it is."""
    rates = []
    for arm in (NEW, BASE):
        parts = [block for sample in trial.of(arm) for block in sample.blocks]
        rates.append(sum(one.samples for one in parts) / max(1e-9, sum(one.seconds for one in parts)))
    return rates[0] / max(1e-9, rates[1])
