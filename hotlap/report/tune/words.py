"""The verdict of a tune in one sentence, the details below it and the headline figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hotlap.records.figures import number
from hotlap.records.trial import TrialStage
from hotlap.records.tune_record import TuneRecord
from hotlap.records.verdict import Decision, Speed, Verdict
from hotlap.report.shared.figures import clean, duration, plural, ratio, times
from hotlap.report.tune.arms import BASE, NEW, final_trial, interval, measured, rate, step_ms, verdict_of
from hotlap.report.tune.coverage import longest_trial, steps_of
from hotlap.report.tune.figures import ends
from hotlap.report.tune.length import whole
from hotlap.report.tune.parts import (
    FAILED,
    FASTER,
    INCONCLUSIVE,
    KEPT,
    NO_SPEEDUP,
    REJECTED,
    UNCLEAR,
    UNFINISHED,
    Figure,
    Row,
)
from hotlap.report.tune.rows import more_processes

OPTIMISATION = "optimisation"
NOISY = 1.2  # ratio between identical arms above which the report warns


def state_and_sentence(tuning: TuneRecord, rows: Sequence[Row]) -> tuple[str, str]:
    if not tuning.finished:
        return UNFINISHED, _unfinished(tuning, rows)
    if tuning.speedup is None:
        return _without_final(tuning, rows)
    if tuning.speedup.decision == Decision.KEEP:
        return FASTER, _faster(tuning, tuning.speedup)
    if tuning.speedup.decision == Decision.INCONCLUSIVE:
        return UNCLEAR, f"Inconclusive: {_together(tuning)}, but {_ended(tuning.speedup.why)}"
    return (
        NO_SPEEDUP,
        f"No speed-up: the optimisations kept one by one do not help together; {_ended(tuning.speedup.why)}",
    )


def _ended(why: str) -> str:
    return clean(why).rstrip(".") + "."


def _sentence(text: str) -> str:
    return _ended(text[:1].upper() + text[1:])


def _faster(tuning: TuneRecord, final: Verdict) -> str:
    speed = f"{ratio(final.speed.ratio)} times as fast" if final.speed else "faster"
    harmless = f", and harmless: {clean(final.gate.rule)}" if final.gate and final.gate.passed else ""
    longest = longest_trial(tuning)
    steps = steps_of(measured(longest.samples)) if longest is not None else 0
    over = f" over {steps:,} steps" if steps else ""
    return f"Proven {speed} with {plural(len(tuning.kept), OPTIMISATION)}{over}{harmless}."


def _together(tuning: TuneRecord) -> str:
    speed = tuning.speedup.speed if tuning.speedup else None
    measured_as = f" measured {times(speed.ratio)}" if speed else " gave no speed"
    return (
        f"the {plural(len(tuning.kept), OPTIMISATION)} kept{' together' if len(tuning.kept) > 1 else ''}{measured_as}"
    )


def _without_final(tuning: TuneRecord, rows: Sequence[Row]) -> tuple[str, str]:
    if tuning.kept:
        kept = plural(len(tuning.kept), OPTIMISATION)
        return UNCLEAR, f"Inconclusive: {kept} kept one by one, but not tried together against the baseline."
    if not rows:
        return _together_only(tuning)
    unclear = sum(row.state == INCONCLUSIVE for row in rows)
    if unclear == len(rows):
        which = (
            f"the one {OPTIMISATION} tried could not"
            if unclear == 1
            else f"none of {unclear} {OPTIMISATION}s tried could"
        )
        return UNCLEAR, f"Inconclusive: {which} be judged."
    also = f"; {unclear} could not be judged" if unclear else ""
    return (
        NO_SPEEDUP,
        f"No speed-up: of {plural(len(rows), OPTIMISATION)} tried, none is proven faster and harmless{also}.",
    )


def _together_only(tuning: TuneRecord) -> tuple[str, str]:
    """Say what became of what was tried as one set, without a trial of its own for each."""
    judged = [verdict for verdict in tuning.verdicts if verdict.stage != TrialStage.NOISE]
    if not judged:
        return NO_SPEEDUP, "No speed-up: nothing was tried."
    if judged[-1].decision == Decision.INCONCLUSIVE:
        return UNCLEAR, f"Inconclusive: what was tried together could not be judged; {_ended(judged[-1].why)}"
    return NO_SPEEDUP, f"No speed-up: what was tried together is not kept; {_ended(judged[-1].why)}"


def _unfinished(tuning: TuneRecord, rows: Sequence[Row]) -> str:
    if not rows:
        return "Not finished: no optimisation has been tried yet."
    if not tuning.kept:
        return f"Not finished: {plural(len(rows), OPTIMISATION)} tried, none kept so far."
    if tuning.speedup is not None:
        return f"Not finished: {_together(tuning)}."
    return f"Not finished: {plural(len(tuning.kept), OPTIMISATION)} kept so far; the final trial is still to come."


def details(tuning: TuneRecord, sentence: str) -> Iterator[str]:
    """Yield the lines below the sentence, without repeating what it says."""
    final = tuning.speedup
    why = final.gate.why if final is not None and final.gate is not None else ""
    if final is not None and final.decision == Decision.KEEP:
        why = why.partition("; also compared: ")[0]  # the sentence has the list
    if why and clean(why) not in sentence:
        yield _sentence(why)
    if final is not None and final.decision == Decision.INCONCLUSIVE:
        yield from _still_needed(final)
    late = sum("budget" in why for _, why in tuning.not_tried)
    if late:
        yield f"{plural(late, OPTIMISATION)} not tried for lack of time: give a larger --budget."
    yield from _noisy(tuning)
    if verdict_of(tuning, TrialStage.NOISE) is None:
        yield "The baseline was not run against itself, so there is no noise band."
    if not tuning.finished:
        yield "This is what is known so far; continue with: hotlap tune --resume"


def _noisy(tuning: TuneRecord) -> Iterator[str]:
    speed = _speed_of(verdict_of(tuning, TrialStage.NOISE))
    if speed is not None and speed.noise_high is not None and speed.noise_high > NOISY:
        yield (
            f"This machine is too noisy for small gains: identical runs may differ by {times(speed.noise_high)}. Let "
            "nothing else run, or give a larger --budget."
        )


def _still_needed(final: Verdict) -> Iterator[str]:
    if final.speed is not None and final.speed.more and "more" not in final.why:
        yield _sentence(f"{more_processes(final.speed)} would settle it")


def figures(tuning: TuneRecord, rows: Sequence[Row]) -> Iterator[Figure]:
    yield from _speed(tuning)
    yield from _steps(tuning)
    yield _counts(rows)
    noise = interval(_speed_of(verdict_of(tuning, TrialStage.NOISE)))
    if noise is not None:
        yield Figure("Noise", times(noise.ratio), f"baseline against itself, {ends(noise) or 'no interval'}")
    ran = sum(len(trial.samples) for trial in tuning.trials)
    yield Figure(
        "Tuning took",
        duration(tuning.seconds),
        f"of {duration(tuning.asked.budget_seconds)}, {plural(ran, 'process', 'processes')}",
    )


def _speed_of(verdict: Verdict | None) -> Speed | None:
    return verdict.speed if verdict else None


def _speed(tuning: TuneRecord) -> Iterator[Figure]:
    together = interval(_speed_of(tuning.speedup))
    if together is not None:
        between = ends(together)
        yield Figure("Speed-up", times(together.ratio), f"95 % interval {between}" if between else "no interval")


def _steps(tuning: TuneRecord) -> Iterator[Figure]:
    final = final_trial(tuning)
    if final is None or not tuning.kept:
        return
    base, new = measured(final.of(BASE)), measured(final.of(NEW))
    before, after = step_ms(base), step_ms(new)
    if before is None or after is None:
        return
    old, now = rate(base), rate(new)
    speed = f"{number(old)} → {number(now)} samples/s" if old and now else ""
    yield Figure("Step", f"{number(before)} → {number(after)} ms", speed)
    if tuning.full_steps is not None and tuning.speedup is not None:
        old_run, new_run = tuning.full_steps * before / 1000, whole(tuning.full_steps, after, tuning.speedup)
        yield Figure("Whole run", f"{duration(old_run)} → {duration(new_run)}", f"{tuning.full_steps:,} steps")


def _counts(rows: Sequence[Row]) -> Figure:
    counted = [(state, sum(row.state == state for row in rows)) for state in (REJECTED, INCONCLUSIVE, FAILED)]
    kept = sum(row.state == KEPT for row in rows)
    others = ", ".join(f"{count} {state}" for state, count in counted if count)
    return Figure("Kept", f"{kept} of {len(rows)}", others)
