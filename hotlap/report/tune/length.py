"""How long the user's whole run would take, and after how many steps it pays off."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.records.trial import TrialStage
from hotlap.records.tune_record import TuneRecord
from hotlap.records.verdict import Speed, Verdict
from hotlap.report.shared.figures import duration
from hotlap.report.shared.parts import Column, Table
from hotlap.report.tune.arms import BASE, NEW, final_trial, measured, step_ms, verdict_of
from hotlap.report.tune.parts import Length
from hotlap.report.tune.rows import pays_off

UNKNOWN_LENGTHS = (1_000, 10_000, 100_000, 1_000_000)


def length(tuning: TuneRecord) -> Length:
    final, judged = final_trial(tuning), tuning.speedup or verdict_of(tuning, TrialStage.FINAL)
    before = step_ms(measured(final.of(BASE))) if final else None
    after = step_ms(measured(final.of(NEW))) if final else None
    if before is None or after is None or judged is None:
        return Length((_missing(tuning),), None)
    return Length(tuple(_facts(tuning, judged, before, after)), _table(tuning, judged, before, after))


def _missing(tuning: TuneRecord) -> str:
    if not tuning.finished:
        return "Not known yet: the final trial against the baseline has not ended."
    if not tuning.kept:
        return "Nothing is kept, so a whole run takes as long as before."
    return "Not known: the final trial measured no steps."


def _facts(tuning: TuneRecord, judged: Verdict, before: float, after: float) -> Iterator[str]:
    steps = tuning.full_steps
    if steps is None:
        yield "The number of steps of the whole run is not known, so here are a few lengths."
    else:
        saved = steps * before / 1000 - whole(steps, after, judged)
        gain = f"{duration(saved)} less" if saved > 0 else f"{duration(-saved)} more"
        yield f"The whole run has {steps:,} steps: {gain} than before."
    for sentence in pays_off(judged):
        yield sentence[0].upper() + sentence[1:] + "."
    known = judged.pays_off
    if steps is not None and known is not None and known.steps is not None and known.steps > steps:
        yield f"At {steps:,} steps it does not pay off: the run ends before the longer warm-up is won back."


def whole(steps: int, ms: float, judged: Verdict) -> float:
    """Return the seconds of training, including warm-up beyond the baseline's."""
    extra = judged.pays_off.extra_seconds if judged.pays_off else 0.0
    return steps * ms / 1000 + max(extra, 0.0)


def _table(tuning: TuneRecord, judged: Verdict, before: float, after: float) -> Table:
    lengths = (tuning.full_steps,) if tuning.full_steps is not None else UNKNOWN_LENGTHS
    return Table(
        title="Training time",
        columns=(
            Column("steps", figures=True),
            Column("before", figures=True),
            Column("after", figures=True),
            Column("95 % interval", figures=True),
        ),
        rows=tuple(
            (
                f"{steps:,}",
                duration(steps * before / 1000),
                duration(whole(steps, after, judged)),
                _between(steps, before, judged, judged.speed),
            )
            for steps in lengths
        ),
        note="steps at the measured speed, including what lies between them (evaluation) but not start-up; after "
        "includes the longer warm-up",
    )


def _between(steps: int, before: float, judged: Verdict, speed: Speed | None) -> str:
    if speed is None or not speed.low or not speed.high:
        return "–"
    quick, slow = (whole(steps, before / ratio, judged) for ratio in (speed.high, speed.low))
    return f"{duration(quick)} to {duration(slow)}"
