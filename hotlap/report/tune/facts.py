"""Step times and resources before and after, the commands to reproduce a tune, and where it was measured."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hotlap.records.figures import NONE, number
from hotlap.records.observation import Observation
from hotlap.records.plan import Risk
from hotlap.records.trial import Sample, Trial, TrialStage
from hotlap.records.tune_record import TuneRecord, TuneRequest
from hotlap.records.verdict import Speed
from hotlap.report.profile.page import segments
from hotlap.report.shared.figures import clean, duration, megabytes, plural
from hotlap.report.shared.parts import Bars, Column, Segment, Table
from hotlap.report.tune.arms import (
    BASE,
    NEW,
    baseline,
    broken,
    final_trial,
    mean,
    measured,
    most,
    rate,
    step_ms,
    verdict_of,
)
from hotlap.report.tune.losses import seed_name
from hotlap.report.tune.parts import NO_SPEEDUP, UNCLEAR, UNFINISHED, Command

LONGER = 3  # times the budget, where the sample was too small
NEXT_RISK = {Risk.EXACT: Risk.ROUNDING, Risk.ROUNDING: Risk.NUMERIC}


def bars(tuning: TuneRecord, observation: Observation | None) -> Bars:
    final = final_trial(tuning)
    before = step_ms(measured(final.of(BASE) if final else baseline(tuning)))
    after = step_ms(measured(final.of(NEW))) if final else None
    speed = tuning.speedup.speed if tuning.speedup else None
    low, high = _ends(before, speed) if after is not None else (None, None)
    return Bars(
        before_ms=before,
        after_ms=after,
        after_low=low,
        after_high=high,
        segments=_parts(observation, before),
        note=" ".join(_bar_notes(tuning, observation, before, after)),
    )


def _parts(observation: Observation | None, before: float | None) -> tuple[Segment, ...]:
    """Apply the profile's shares to the step time, which was measured without profiling."""
    found = segments(observation) if observation is not None else ()
    return found if before is None else tuple(replace(segment, ms=segment.share * before) for segment in found)


def _ends(before: float | None, speed: Speed | None) -> tuple[float | None, float | None]:
    if before is None or speed is None or not speed.low or not speed.high:
        return None, None
    return before / speed.high, before / speed.low


def _bar_notes(
    tuning: TuneRecord, observation: Observation | None, before: float | None, after: float | None
) -> Iterator[str]:
    if before is None:
        yield "No step of the baseline has been measured yet."
    elif after is not None:
        final = verdict_of(tuning, TrialStage.FINAL) is not None
        yield f"Both lengths were measured in the {'final trial' if final else 'trial that proved it'}."
    elif tuning.kept or not tuning.finished:
        yield "After is missing: the final trial has not measured any step."
    else:
        yield "Nothing is kept, so a step takes as long as before."
    if observation is None:
        yield "The phases are missing: the profile of the baseline was not saved."
    else:
        yield "The phases have the shares that the profile of the baseline found."


def before_after(tuning: TuneRecord) -> Table:
    final = final_trial(tuning)
    arms = [measured(final.of(arm)) for arm in (BASE, NEW)] if final else [measured(baseline(tuning))]
    lines: tuple[tuple[str, Callable[[tuple[Sample, ...]], str]], ...] = (
        ("step, ms", lambda arm: number(step_ms(arm))),
        ("samples/s", lambda arm: number(rate(arm))),
        ("start to first step", lambda arm: duration(mean(sample.startup_seconds for sample in arm))),
        ("warm-up", lambda arm: duration(mean(sample.warmup_seconds for sample in arm))),
        ("peak memory", lambda arm: megabytes(most(sample.host_mb for sample in arm))),
        ("peak device memory", lambda arm: megabytes(most(sample.device_mb for sample in arm))),
        ("processes", lambda arm: str(len(arm))),
    )
    rows = [(name, *(describe(arm) for arm in arms)) for name, describe in lines]
    return Table(
        title="Before and after" if len(arms) > 1 else "Before",
        columns=(Column(""), *(Column(name, figures=True) for name in ("before", "after")[: len(arms)])),
        rows=tuple(row for row in rows if set(row[1:]) != {NONE}) if any(arms) else (),
    )


def not_tried(tuning: TuneRecord) -> Table:
    """List what was not tried by reason, because one reason often applies to many."""
    by_reason: dict[str, list[str]] = {}
    for entry, why in tuning.not_tried:
        by_reason.setdefault(clean(why), []).append(clean(entry))
    return Table(
        title="Not tried",
        columns=(Column("why", minimum=24), Column("optimisations")),
        rows=tuple((why, ", ".join(names)) for why, names in by_reason.items()),
    )


def broken_processes(tuning: TuneRecord) -> Table:
    return broken_rows(tuning.trials)


def broken_rows(trials: Sequence[Trial]) -> Table:
    return Table(
        title="Processes that did not train to the end",
        columns=(Column("#", figures=True), Column("trial"), Column("side"), Column("ended"), Column("why")),
        rows=tuple(
            (
                str(sample.number),
                clean(trial.name),
                sample.arm,
                sample.ended,
                clean(sample.why) or NONE,
            )
            for trial in trials
            for sample in broken(trial)
        ),
    )


def commands(tuning: TuneRecord) -> Iterator[Command]:
    command = shlex.join(tuning.asked.command)
    yield Command("Go to the folder", clean(shlex.join(["cd", tuning.asked.folder])))
    yield Command("Tune again", clean(f"hotlap tune {_options(tuning.asked)} {command}"))
    if tuning.kept:
        chosen = " ".join(
            f"--with {shlex.quote(f'{choice.name}={choice.value}' if choice.value is not None else choice.name)}"
            for choice in tuning.kept
        )
        yield Command("Train with the proven plan", clean(f"hotlap run {command}"))
        yield Command("The same, spelled out", clean(f"hotlap run {chosen} {command}"))
    yield Command("Train without hotlap", clean(command))
    yield Command("Write this report again", clean(f"hotlap report {shlex.quote(tuning.run)} --html"))


def next_steps(tuning: TuneRecord, state: str) -> Iterator[Command]:
    """Yield what to type next: to use what is kept, or to find out what this tune could not, and to see all of it."""
    command = shlex.join(tuning.asked.command)
    if tuning.kept:
        yield Command("Train with it", clean(f"hotlap run {command}"))
    if state == UNFINISHED:
        yield Command("Continue", clean(f"hotlap tune --resume {shlex.quote(tuning.run)}"))
    elif state == UNCLEAR:
        longer = replace(tuning.asked, budget_seconds=LONGER * tuning.asked.budget_seconds)
        yield Command("Measure longer", clean(f"hotlap tune {_options(longer)} {command}"))
    elif state == NO_SPEEDUP and (risk := NEXT_RISK.get(tuning.asked.risk)) is not None:
        yield Command(f"Allow {risk} too", clean(f"hotlap tune {_options(replace(tuning.asked, risk=risk))} {command}"))
    yield Command("All details", clean(f"hotlap show {shlex.quote(tuning.run)}"))
    yield Command("In the browser", clean(f"hotlap report {shlex.quote(tuning.run)} --open"))


def _options(request: TuneRequest) -> str:
    words = ["--budget", f"{request.budget_seconds:g}s", "--risk", request.risk]
    words += ["--min-effect", f"{(request.minimum - 1) * 100:g}%"]
    if request.steps is not None:
        words += ["--steps", str(request.steps)]
    if request.metric is not None:
        tag = f"tb:{request.metric.tag}" if request.metric.tag is not None else None
        words += ["--metric", request.metric.pattern or tag or request.metric.name]
        words += ["--higher-is-better"] if request.metric.higher_is_better else []
    for option, limit in (("--memory", request.memory_mb), ("--device-memory", request.device_mb)):
        words += [option, f"{limit:g}M"] if limit is not None else []
    return shlex.join(words)


def _repeats(tuning: TuneRecord) -> str:
    """Say whether the unchanged program repeats its losses with a seed, which decides how strict `exact` can be."""
    by_seed: dict[int, list[tuple[float, ...]]] = {}
    for sample in (sample for trial in tuning.trials for sample in measured(trial.samples)):
        if not sample.choices and not sample.nudge and sample.losses:
            by_seed.setdefault(sample.seed_shift, []).append(sample.losses)
    repeats = [(runs[0], repeat) for runs in by_seed.values() for repeat in runs[1:]]
    if not repeats:
        return "not known: no seed was run twice"
    differing = sum(any(left != right for left, right in zip(first, repeat, strict=False)) for first, repeat in repeats)
    if differing:
        return f"no: {differing} of {plural(len(repeats), 'run')} that repeated a seed gave other losses"
    return f"yes, bit for bit ({plural(len(repeats), 'run')} repeated a seed)"


def footer(tuning: TuneRecord) -> Iterator[tuple[str, str]]:
    shifts = sorted({sample.seed_shift for trial in tuning.trials for sample in trial.samples})
    ran = sum(len(trial.samples) for trial in tuning.trials)
    yield "command", clean(shlex.join(tuning.asked.command))
    yield "folder", clean(tuning.asked.folder)
    yield "source", f"{clean(tuning.circumstances.source)} (hash of the Python files)"
    yield "machine", clean(tuning.machine)
    yield "hardware", clean(tuning.circumstances.hardware)
    yield "versions", clean(", ".join(f"{name} {version}" for name, version in tuning.versions))
    yield "seeds", ", ".join(seed_name(shift) for shift in shifts) or "none used yet"
    yield "repeats itself", _repeats(tuning)
    yield (
        "trials",
        f"{plural(len(tuning.trials), 'trial')}, {plural(ran, 'process', 'processes')}, before and after in turns",
    )
    yield "risk allowed", clean(tuning.asked.risk)
    yield "started", clean(tuning.started)
    yield "run", clean(tuning.run)
