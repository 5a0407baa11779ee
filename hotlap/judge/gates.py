"""Whether training is as good as before: one gate per risk class, and every gate fails closed.

| risk | to pass |
|---|---|
| EXACT | every loss bit-equal, the baseline bit-equal with itself (exact.py); the rounding gate where it is not |
| ROUNDING | the loss parts from the baseline's no further than the baseline parts from itself (rounding.py) |
| NUMERIC | the loss equivalent over three seeds or more, margin stated (numeric.py) |
| TRAINING | never by itself: asked for by name, and the metric non-inferior with p < 0.01 |

A metric the user named must be non-inferior as well, but for EXACT, where it must be the same.
All else that both arms leave is compared, too (checks.py), and memory is a gate of its own (memory.py).
`passed` is None where there is no evidence, which keeps nothing; `more` then says how many seeds or processes would do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hotlap.judge.checks import EVALUATION, checks
from hotlap.judge.curves import Curves, baseline, curves, evidence_missing, harm_seen, readings
from hotlap.judge.exact import exact
from hotlap.judge.memory import MemoryLimits, memory_checks
from hotlap.judge.numeric import late_loss, late_metric, metric_gate, numeric, unmeasured_rounding
from hotlap.judge.rounding import rounding
from hotlap.records.plan import Risk
from hotlap.records.trial import Sample, Stage, Trial
from hotlap.records.tune_record import Metric
from hotlap.records.verdict import Check, Gate

LOSSES = "losses"
OF_TRAINING = (LOSSES, "weights", "optimizer state", "random streams")


def gate(
    trial: Trial,
    noise: Trial | None,
    metric: Metric | None,
    earlier: Sequence[Sample] = (),
    allowed: MemoryLimits | None = None,
) -> Gate:
    by_loss = _by_loss(trial, noise, metric, earlier)
    if Risk(trial.risk) is Risk.TRAINING:
        return by_loss
    others = checks(trial, noise, earlier)
    return _joined(by_loss, [*others, *memory_checks(trial, allowed or MemoryLimits())]) if others else by_loss


def _joined(by_loss: Gate, others: Sequence[Check]) -> Gate:
    """All of them must hold; the reason is the first that does not."""
    every = (Check(name=LOSSES, passed=by_loss.passed, why=by_loss.why), *others)
    found = replace(by_loss, checks=every)
    failed = [check for check in every if check.passed is False]
    if failed:
        only = failed[0].name == EVALUATION and not any(check.name in OF_TRAINING for check in failed)
        note = "training is the same, evaluation is not: " if only else ""
        return replace(found, passed=False, why=f"{note}{failed[0].why}", more=0)
    unknown = next((check for check in every if check.passed is None), None)
    if unknown is not None:
        return replace(found, passed=None, why=unknown.why, more=by_loss.more or 1)
    names = [check.name for check in others if check.why != "none seen"]
    return replace(
        found, rule=f"{by_loss.rule}; {', '.join(names)}", why=f"{by_loss.why}; also compared: {', '.join(names)}"
    )


def with_check(found: Gate, check: Check) -> Gate:
    """The same gate with one more thing that must hold."""
    checks_ = (*found.checks, check)
    if found.passed is False or check.passed:
        return replace(found, checks=checks_)
    passed = False if check.passed is False else None
    return replace(found, checks=checks_, passed=passed, why=check.why, more=0 if passed is False else found.more or 1)


def _by_loss(trial: Trial, noise: Trial | None, metric: Metric | None, earlier: Sequence[Sample]) -> Gate:
    risk = Risk(trial.risk)
    found = curves(trial, noise, earlier)
    harm = harm_seen(trial, noise)
    if harm is not None:
        return Gate(risk=risk.value, passed=False, rule="as many losses as the baseline, all finite", why=harm)
    if risk is Risk.TRAINING:
        return _training(trial, noise, metric)
    missing = evidence_missing(trial, noise, found)
    if missing is not None:
        return Gate(risk=risk.value, passed=None, rule="losses of both arms", why=missing)
    by_loss = _BY_RISK[risk](found)
    if trial.stage == Stage.LASTING.value:
        return _lasting(trial, noise, metric, found, by_loss)
    if metric is None or risk is Risk.EXACT or not by_loss.passed:
        return by_loss
    return _weaker([by_loss, _by_metric(trial, noise, metric, risk)])


def _lasting(trial: Trial, noise: Trial | None, metric: Metric | None, found: Curves, by_loss: Gate) -> Gate:
    """One longer run looks for harm that comes late: over seeds it was proven before, so what is too uncertain by that
    rule must only be no worse in plain sight.
    """
    risk = Risk(trial.risk)
    if risk is Risk.EXACT and found.repeats is not False:
        return by_loss
    gates = [late_loss(found, risk) if by_loss.passed is None else by_loss]
    if metric is not None:
        plain = [sample for sample in trial.of("base") if not sample.nudge]
        gates.append(late_metric(readings(plain, metric), readings(trial.of("new"), metric), metric, risk))
    return _weaker(gates)


def _exact(found: Curves) -> Gate:
    if found.repeats is False:
        return rounding(found, Risk.EXACT, "the baseline does not repeat itself bit by bit, so by rounding: ")
    return exact(found)


def _rounding(found: Curves) -> Gate:
    equal = exact(found)
    if equal.passed:
        return Gate(risk=Risk.ROUNDING.value, passed=True, rule=equal.rule, why=equal.why)
    return rounding(found) if found.parted else unmeasured_rounding(found)


_BY_RISK = {Risk.EXACT: _exact, Risk.ROUNDING: _rounding, Risk.NUMERIC: numeric}


def _training(trial: Trial, noise: Trial | None, metric: Metric | None) -> Gate:
    rule = "asked for by name, metric non-inferior with p < 0.01"
    names = {choice.name for choice in trial.new if choice.asked}
    if trial.entry is not None and trial.entry not in names:
        why = "it changes the recipe of the training, which is never kept unasked"
        return Gate(risk=Risk.TRAINING.value, passed=False, rule=rule, why=why)
    if metric is None:
        why = "it changes the recipe of the training, and only a metric can judge that: give --metric"
        return Gate(risk=Risk.TRAINING.value, passed=None, rule=rule, why=why)
    return _by_metric(trial, noise, metric, Risk.TRAINING)


def _by_metric(trial: Trial, noise: Trial | None, metric: Metric, risk: Risk) -> Gate:
    plain = [sample for sample in baseline(trial, noise) if not sample.nudge]
    return metric_gate(readings(plain, metric), readings(trial.of("new"), metric), metric, risk)


def _weaker(gates: Sequence[Gate]) -> Gate:
    """The one that decides: a failed one, else one without evidence, else both in one."""
    for wanted in (False, None):
        for judged in gates:
            if judged.passed is wanted:
                return judged
    return Gate(
        risk=gates[0].risk,
        passed=True,
        rule="; ".join(judged.rule for judged in gates),
        why="; ".join(judged.why for judged in gates),
        figures=tuple(figure for judged in gates for figure in judged.figures),
    )
