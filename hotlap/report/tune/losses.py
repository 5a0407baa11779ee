"""The losses of both arms, thinned out, with the noise band of the baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hotlap.records.figures import NONE
from hotlap.records.trial import Sample
from hotlap.records.tune_record import TuneRecord
from hotlap.report.shared.figures import clean, plural
from hotlap.report.shared.parts import Column, Table
from hotlap.report.tune.arms import BASE, NEW, baseline, final_trial, measured
from hotlap.report.tune.parts import Curve, Losses

POINTS = 160  # a curve is drawn with at most this many
SHOWN = 6  # rows of the table

Values = tuple[float | None, ...]


def losses(tuning: TuneRecord) -> Losses:
    final = final_trial(tuning)
    own = [sample for sample in measured(baseline(tuning)) if sample.losses]
    before = [sample for sample in (final.of(BASE) if final else own) if sample.losses]
    after = [sample for sample in (final.of(NEW) if final else ()) if sample.losses]
    count = max((len(sample.losses) for sample in (*own, *before, *after)), default=0)
    width = max(1, -(-count // POINTS))
    steps = tuple(range(0, count, width))
    before, after, paired = _same_seeds(before, after)
    band = [_binned(sample.losses, count, width) for sample in own]
    curves = tuple(
        Curve(name, _mean([_binned(sample.losses, count, width) for sample in arm]))
        for name, arm in (("before", before), ("after", after))
        if arm
    )
    low, high = _band(band, len(steps))
    thin = Losses(steps, max(count - 1, 0), curves, low, high, (), ())
    return Losses(
        steps=steps,
        last=max(count - 1, 0),
        curves=curves,
        low=low,
        high=high,
        facts=tuple(_facts(tuning, thin, before, after, len(own), width, paired)),
        tables=tuple(table for table in (_table(thin), _metric(tuning)) if table is not None),
    )


def _same_seeds(before: Sequence[Sample], after: Sequence[Sample]) -> tuple[list[Sample], list[Sample], bool]:
    """Keep the samples whose seeds both arms share, since only those curves are comparable."""
    common = {sample.seed_shift for sample in before} & {sample.seed_shift for sample in after}
    if not common:
        return list(before), list(after), not after
    return (
        [sample for sample in before if sample.seed_shift in common],
        [sample for sample in after if sample.seed_shift in common],
        True,
    )


def _binned(values: Sequence[float], count: int, width: int) -> Values:
    """Return the mean of each bin; None for a bin with a loss that is not finite."""
    bins = [values[start : start + width] for start in range(0, count, width)]
    return tuple(sum(losses) / len(losses) if losses and all(map(math.isfinite, losses)) else None for losses in bins)


def _mean(curves: Sequence[Values]) -> Values:
    """Return the mean over processes; None where any of them has no value."""
    return tuple(
        sum(known) / len(known) if len(known) == len(column) else None
        for column in zip(*curves, strict=True)
        for known in [[value for value in column if value is not None]]
    )


def _band(curves: Sequence[Values], bins: int) -> tuple[Values, Values]:
    if len(curves) < 2:
        return (None,) * bins, (None,) * bins
    columns = [[value for value in column if value is not None] for column in zip(*curves, strict=True)]
    wide = [column if len(column) > 1 else [] for column in columns]
    return tuple(min(column, default=None) for column in wide), tuple(max(column, default=None) for column in wide)


def _facts(
    tuning: TuneRecord, thin: Losses, before: list[Sample], after: list[Sample], own: int, width: int, paired: bool
) -> Iterator[str]:
    if not thin.steps:
        yield "No loss was seen, so there is no curve."
        return
    if not after:
        yield _why_no_after(tuning)
    over = f"; each point averages {width} steps" if width > 1 else ""
    compared = f" before and {len(after)} after" if after else ""
    yield f"Means over {plural(len(before), 'process', 'processes')}{compared}{over}."
    if not paired:
        yield "Before and after had no seed in common, so their curves differ by chance as well."
    if after:
        yield from _distance(before, after)
    yield _inside(thin, own)
    yield from _not_finite(before, after)


def _why_no_after(tuning: TuneRecord) -> str:
    if not tuning.finished:
        return "The final trial has not run yet, so only the curve before is shown."
    return (
        "There was no final trial, so only the curve before is shown."
        if tuning.kept
        else "Nothing is kept, so only the curve before is shown."
    )


def _distance(before: list[Sample], after: list[Sample]) -> Iterator[str]:
    """Compare the losses of both arms step by step, for each shared seed."""
    first = {sample.seed_shift: sample.losses for sample in reversed(before)}
    pairs = [
        (old, new)
        for sample in after
        if sample.seed_shift in first
        for old, new in zip(first[sample.seed_shift], sample.losses, strict=False)
        if math.isfinite(old) and math.isfinite(new)
    ]
    if not pairs:
        return
    furthest = max(abs(new - old) for old, new in pairs)
    compared = f"{plural(len(pairs), 'pair')} of losses at the same step and seed"
    if furthest == 0:
        yield f"All {compared} are equal bit for bit."
    else:
        yield f"Of {compared} the two furthest apart differ by {furthest:.3g}."


def _inside(thin: Losses, own: int) -> str:
    if own < 2:
        return "There is no noise band: it needs two processes of the baseline."
    band = f"The band spans the lowest to the highest of {own} processes of the baseline"
    if len(thin.curves) < 2:
        return f"{band}."
    known = [
        low <= value <= high
        for value, low, high in zip(thin.curves[1].values, thin.low, thin.high, strict=True)
        if value is not None and low is not None and high is not None
    ]
    return f"{band}; the curve after is inside it at {sum(known)} of {len(known)} points."


def _not_finite(before: list[Sample], after: list[Sample]) -> Iterator[str]:
    for name, arm in (("before", before), ("after", after)):
        broken = [i for sample in arm for i, loss in enumerate(sample.losses) if not math.isfinite(loss)]
        if broken:
            yield f"The loss {name} was not finite, first at step {min(broken) + 1}."


def _table(thin: Losses) -> Table | None:
    if not thin.curves:
        return None
    last = len(thin.steps) - 1
    picked = sorted({round(i * last / (SHOWN - 1)) for i in range(SHOWN)})
    return Table(
        title="Loss",
        columns=(
            Column("from step", figures=True),
            *(Column(curve.name, figures=True) for curve in thin.curves),
            Column("noise band", figures=True),
        ),
        rows=tuple(
            (
                f"{thin.steps[i] + 1:,}",
                *(_digits(curve.values[i]) for curve in thin.curves),
                f"{_digits(thin.low[i])} to {_digits(thin.high[i])}" if thin.low[i] is not None else NONE,
            )
            for i in picked
        ),
    )


def _digits(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"


def _metric(tuning: TuneRecord) -> Table | None:
    """List the last metric value of each process of the final trial, by seed."""
    metric, final = tuning.asked.metric, final_trial(tuning)
    if metric is None or final is None:
        return None
    read = {
        (sample.seed_shift, sample.arm): sample.readings[-1].value
        for sample in final.samples
        if sample.readings and sample.arm in (BASE, NEW)
    }
    seeds = sorted({seed for seed, _ in read})
    better = "higher" if metric.higher_is_better else "lower"
    return Table(
        title=clean(f"{metric.name} at the end"),
        columns=(Column("seed"), Column("before", figures=True), Column("after", figures=True)),
        rows=tuple(
            (seed_name(seed), _digits(read.get((seed, BASE))), _digits(read.get((seed, NEW)))) for seed in seeds
        ),
        note=f"{better} is better" if seeds else "no value was read in the final trial",
    )


def seed_name(shift: int) -> str:
    return "as written" if shift == 0 else f"{shift:+d}"
