"""Decides whether training is as good as before: one gate per risk class, and every gate fails closed.

| risk | to pass |
|---|---|
| EXACT | every loss bit-equal (exact.py); the rounding gate if the baseline is not bit-equal with itself |
| ROUNDING | the loss departs from the baseline's no further than the baseline departs from itself (rounding.py) |
| NUMERIC | the loss is equivalent over three or more seeds, with a stated margin (numeric.py) |
| TRAINING | never automatic: requested by name, and the metric non-inferior with p < 0.01 |

A metric that the user named must be non-inferior as well; for EXACT it must be the same.
Everything else that both arms leave behind is compared too (checks.py), and memory is a gate of its own (memory.py).
`passed` is None without evidence, and then nothing is kept; `more` says how many seeds or processes would suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hotlap.judge.checks import EVALUATION, checks
from hotlap.judge.curves import Curves, baseline, curves, evidence_missing, harm_seen, readings
from hotlap.judge.exact import exact
from hotlap.judge.leftovers import leftover_checks
from hotlap.judge.memory import MemoryLimits, memory_checks
from hotlap.judge.numeric import late_loss, late_metric, metric_gate, numeric, unmeasured_rounding
from hotlap.judge.rounding import rounding
from hotlap.records.plan import Risk
from hotlap.records.trial import Sample, Trial, TrialStage
from hotlap.records.tune_record import Metric
from hotlap.records.verdict import Check, Gate

LOSSES = "losses"
OF_TRAINING = (
    LOSSES,
    "weights",
    "optimizer state",
    "random streams",
    "own random streams",
    "schedulers",
    "own tensors",
)


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
    if not others:
        return by_loss
    return _joined(by_loss, [*others, *memory_checks(trial, allowed or MemoryLimits()), *leftover_checks(trial)])


def _joined(by_loss: Gate, others: Sequence[Check]) -> Gate:
    """Combine the gates, all of which must pass; the first that does not is the reason."""
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
    """Return the same gate with one more check that must pass."""
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
        return Gate(risk=risk, passed=False, rule="as many losses as the baseline, all finite", why=harm)
    if risk is Risk.TRAINING:
        return _training(trial, noise, metric)
    missing = evidence_missing(trial, noise, found)
    if missing is not None:
        return Gate(risk=risk, passed=None, rule="losses of both sides", why=missing)
    by_loss = _BY_RISK[risk](found)
    if trial.stage == TrialStage.LASTING:
        return _lasting(trial, noise, metric, found, by_loss)
    if metric is None or risk is Risk.EXACT or not by_loss.passed:
        return by_loss
    return _weaker([by_loss, _by_metric(trial, noise, metric, risk)])


def _lasting(trial: Trial, noise: Trial | None, metric: Metric | None, found: Curves, by_loss: Gate) -> Gate:
    """Look for harm that comes late, in one longer run.

    Earlier trials proved the change over several seeds, so a loss that is too uncertain by that rule only has to be no
    worse in plain sight.
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
        return rounding(
            found, Risk.EXACT, "the baseline does not repeat itself bit by bit, so the rounding rule applies: "
        )
    return exact(found)


def _rounding(found: Curves) -> Gate:
    equal = exact(found)
    if equal.passed:
        return Gate(risk=Risk.ROUNDING, passed=True, rule=equal.rule, why=equal.why)
    return rounding(found) if found.parted else unmeasured_rounding(found)


_BY_RISK = {Risk.EXACT: _exact, Risk.ROUNDING: _rounding, Risk.NUMERIC: numeric}


def _training(trial: Trial, noise: Trial | None, metric: Metric | None) -> Gate:
    rule = "requested by name, metric non-inferior with p < 0.01"
    names = {choice.name for choice in trial.new if choice.asked}
    if trial.entry is not None and trial.entry not in names:
        why = "it changes the training recipe, and such a change is only kept when requested by name"
        return Gate(risk=Risk.TRAINING, passed=False, rule=rule, why=why)
    if metric is None:
        why = "it changes the training recipe, which only a metric can judge: add --metric"
        return Gate(risk=Risk.TRAINING, passed=None, rule=rule, why=why)
    return _by_metric(trial, noise, metric, Risk.TRAINING)


def _by_metric(trial: Trial, noise: Trial | None, metric: Metric, risk: Risk) -> Gate:
    plain = [sample for sample in baseline(trial, noise) if not sample.nudge]
    return metric_gate(readings(plain, metric), readings(trial.of("new"), metric), metric, risk)


def _weaker(gates: Sequence[Gate]) -> Gate:
    """Return the gate that decides: a failed one, else one without evidence, else all of them combined."""
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
