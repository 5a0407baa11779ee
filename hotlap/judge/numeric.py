"""NUMERIC and TRAINING: training must be as good over several seeds.

The loss at the end must be equivalent (two one-sided tests at 5 %): neither higher nor lower than the baseline's by
more than the margin. Lower precision has no business training better; a loss that falls faster means that something
else was lost, such as a dropout or a weight decay. The metric, if the user named one, must be non-inferior. A
difference beyond the margin that could still be chance is no evidence either way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hotlap.judge.curves import Curves, first_difference
from hotlap.judge.rounding import Stretch, apart
from hotlap.judge.seeds import (
    MOST_MARGIN,
    PairedDifferences,
    final_losses,
    loss_margin,
    missing_seeds,
    paired,
    seeds_needed,
)
from hotlap.records.plan import Risk
from hotlap.records.tune_record import Metric
from hotlap.records.verdict import Gate

CONFIDENCE = 0.90  # of the interval: 5 % on each side
TRAINING_CONFIDENCE = 0.98  # p < 0.01 on the side that matters
EARLY, EARLY_STEPS = 1e-3, 4  # of the loss, in the first steps, for a change that claims to be rounding

Readings = Mapping[int, Sequence[float]]


def numeric(found: Curves, risk: Risk = Risk.NUMERIC, note: str = "") -> Gate:
    """Require the loss of the last quarter of the steps to be equivalent over the seeds."""
    result = paired(final_losses(found.base), final_losses(found.new), CONFIDENCE)
    if result is None:
        more = missing_seeds(found)
        rule = f"{note}loss of the last quarter of the steps equivalent over seeds"
        why = f"both arms ran with {len(found.seeds)} seeds, but {len(found.seeds) + more} are needed"
        return Gate(risk=risk, passed=None, rule=rule, why=why, more=more)
    margin = loss_margin(result)
    rule = (
        f"{note}loss of the last quarter of {found.steps} steps equivalent, margin {margin:.3g} "
        f"({100 * margin / result.level:.2g} %), {result.seeds} seeds"
    )
    return _inside(result, margin, rule, risk, CONFIDENCE)


def unmeasured_rounding(found: Curves) -> Gate:
    """Judge a change that claims to be rounding when the baseline's own rounding was never measured."""
    note = "the baseline was never run nudged, so the rule over seeds applies: "
    first = Stretch(0, EARLY_STEPS)
    for seed in found.seeds:
        base = found.base[seed][0]
        if all(first_difference(base, curve) is None for curve in found.new[seed]):
            continue
        level = sum(abs(loss) for loss in base[: first.end]) / first.end
        far = max(apart(curve, base, first).square for curve in found.new[seed])
        if far > EARLY * level:
            rule = f"{note}loss of the first {first.end} steps within {100 * EARLY:g} %"
            why = f"in steps 0 to {first.end - 1} the loss differs by {100 * far / level:.2g} %, which is not rounding"
            return Gate(risk=Risk.ROUNDING, passed=False, rule=rule, why=why)
    return numeric(found, Risk.ROUNDING, note)


def metric_gate(base: Readings, new: Readings, metric: Metric, risk: Risk) -> Gate:
    """Require the last reading of the metric to be non-inferior over the seeds."""
    confidence = TRAINING_CONFIDENCE if risk is Risk.TRAINING else CONFIDENCE
    share = f"p < {(1 - confidence) / 2:.2g}"
    result = paired(_worse(base, metric), _worse(new, metric), confidence)
    if not base or not new:
        missing = "baseline" if not base else "new arm"
        why = f"the {missing} gave no reading of {metric.name}: check --metric, or raise --steps"
        return Gate(risk=risk, passed=None, rule=f"{metric.name} non-inferior, {share}", why=why)
    if result is None:
        both = len(set(base) & set(new))
        why = f"both arms gave {metric.name} for {both} seeds, but 3 are needed"
        return Gate(risk=risk, passed=None, rule=f"{metric.name} non-inferior, {share}", why=why, more=3 - both)
    margin = result.spread if metric.margin is None else metric.margin
    rule = f"{metric.name} non-inferior, margin {margin:.3g}, {share}, {result.seeds} seeds"
    return _inside(result, margin, rule, risk, confidence, what=metric.name, better_too=True)


def late_loss(found: Curves, risk: Risk) -> Gate:
    """Compare the loss in the last quarter of one long run.

    It may differ from the baseline's by a tenth, or by four times what the baseline differs from itself.
    """
    last = Stretch(found.steps - max(1, found.steps // 4), found.steps)
    own = [abs(apart(other, first, last).mean) for other, first in found.parted]
    rule = f"loss of the last quarter of {found.steps} steps within {100 * MOST_MARGIN:.0f} % of the baseline's"
    for seed in found.seeds:
        base = found.base[seed][0]
        level = sum(abs(loss) for loss in base[last.first :]) / (last.end - last.first)
        allowed = max(MOST_MARGIN * level, 4 * max(own, default=0.0))
        far = max((apart(curve, base, last).mean for curve in found.new[seed]), key=abs)
        if abs(far) > allowed:
            why = f"in steps {last.first} to {last.end - 1} the loss is {100 * far / level:+.2g} % from the baseline's"
            return Gate(risk=risk, passed=False, rule=rule, why=why)
    return Gate(risk=risk, passed=True, rule=rule, why="the loss at the end of a longer run is the baseline's")


def late_metric(base: Readings, new: Readings, metric: Metric, risk: Risk) -> Gate:
    """Require the last reading of one long run to be worse by at most the margin, or a tenth without one."""
    rule = f"{metric.name} at the end of a longer run not worse"
    for seed, values in _worse(base, metric).items():
        if seed not in new:
            why = f"the new arm gave no reading of {metric.name}"
            return Gate(risk=risk, passed=False, rule=rule, why=why)
        before, after = values[-1], _worse(new, metric)[seed][-1]
        margin = MOST_MARGIN * abs(before) if metric.margin is None else metric.margin
        if after - before > margin:
            why = f"{metric.name} is {abs(after):.4g} instead of {abs(before):.4g} at the end of a longer run"
            return Gate(risk=risk, passed=False, rule=rule, why=why)
    return Gate(risk=risk, passed=True, rule=rule, why=f"{metric.name} is not worse at the end of a longer run")


def _inside(
    result: PairedDifferences,
    margin: float,
    rule: str,
    risk: Risk,
    confidence: float,
    what: str = "the loss",
    better_too: bool = False,
) -> Gate:
    figures = (("difference", result.mean), ("low", result.low), ("high", result.high), ("margin", margin))
    side = "worse" if result.mean > 0 else "better"
    seen = f"{what} is {abs(result.mean):.3g} {side}, interval {result.low:.3g} to {result.high:.3g}"
    within = result.high <= margin and (better_too or result.low >= -margin)
    if within:
        return Gate(risk=risk, passed=True, rule=rule, why=seen, figures=figures)
    proven = result.low > 0 or (result.high < 0 and not better_too)
    if proven and abs(result.mean) > margin:
        return Gate(risk=risk, passed=False, rule=rule, why=seen, figures=figures)
    more = seeds_needed(result, margin, confidence)
    why = f"{seen}: too uncertain for a margin of {margin:.3g}"
    return Gate(risk=risk, passed=None, rule=rule, why=why, figures=figures, more=more)


def _worse(values: Readings, metric: Metric) -> dict[int, list[float]]:
    """Flip the sign of a metric where higher is better, so that more is always worse."""
    sign = -1.0 if metric.higher_is_better else 1.0
    return {seed: [sign * value for value in group] for seed, group in values.items()}
