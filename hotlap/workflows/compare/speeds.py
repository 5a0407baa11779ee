"""Compares the speed of two sets of processes, or of two saved runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from hotlap import store
from hotlap.errors import NotComparable
from hotlap.judge.speed import speed
from hotlap.records.codec import SCHEMA
from hotlap.records.comparison import Comparison, Kind, Result, Side
from hotlap.records.observation import Observation
from hotlap.records.plan import Risk
from hotlap.records.trial import Block, EndReason, Sample, Trial, TrialStage
from hotlap.records.tune_record import TuneRecord
from hotlap.records.verdict import Speed

BASE, NEW = "base", "new"
BLOCK = 10  # steps of a profile per block


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    max_slowdown: float
    budget_seconds: float
    steps: int | None
    run_dir: Path | None


# The result


def judge(trial: Trial, max_slowdown: float, names: tuple[str, str]) -> tuple[Result, str, Speed | None]:
    """Decide whether a slowdown beyond `max_slowdown` is proven, ruled out, or neither."""
    found = speed(trial, None, 1 + max_slowdown)
    base, new = names
    if found is None:
        return Result.INCONCLUSIVE, f"no step of {base} or {new} was measured", None
    said = f"{new} takes {_longer(found)} than {base}"
    allowed = f"the {_percent(max_slowdown)} % allowed"
    if found.slower:
        return Result.REGRESSION, f"{said}, more than {allowed}", found
    if found.low is not None and found.noise_low is not None and found.low >= 1 / (1 + max_slowdown):
        return Result.NO_REGRESSION, f"{said}, {'no slowdown' if found.ratio >= 1 else f'within {allowed}'}", found
    return Result.INCONCLUSIVE, f"{said}; more than {allowed} is neither proven nor ruled out{_needed(found)}", found


def _needed(found: Speed) -> str:
    if found.noise_low is None:
        return ", because one process each does not show how much processes differ"
    return f"; it would take {found.more} more processes of each" if found.more else ""


def _longer(found: Speed) -> str:
    """Return the change in time for the same work, with the interval in the same direction."""
    change = 1 / found.ratio - 1
    word = "longer" if change >= 0 else "less time"
    if found.low is None or found.high is None:
        return f"{_percent(abs(change))} % {word} (no interval)"
    ends = f"{_signed(1 / found.high - 1)} to {_signed(1 / found.low - 1)} %"
    return f"{_percent(abs(change))} % {word} (95 % interval {ends})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}".removesuffix(".0")


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}"


def trial_of(samples: Sequence[Sample]) -> Trial:
    return Trial(
        schema=SCHEMA,
        name="compare",
        stage=TrialStage.FINAL,
        entry=None,
        value=None,
        base=(),
        new=(),
        risk=Risk.EXACT,
        samples=tuple(samples),
    )


def comparison_of(
    run: store.Run, kind: Kind, sides: tuple[Side, Side], trial: Trial, options: Options, started: float
) -> Comparison:
    result, why, found = judge(trial, options.max_slowdown, (sides[0].name, sides[1].name))
    return Comparison(
        schema=SCHEMA,
        run=run.id,
        kind=kind,
        base=sides[0],
        new=sides[1],
        max_slowdown=options.max_slowdown,
        result=result,
        why=why,
        speed=found,
        trial=trial,
        machine="",
        started=datetime.fromtimestamp(started, timezone.utc).isoformat(timespec="seconds"),
        seconds=time.time() - started,
    )


# Two saved runs


def compare_runs(base: store.Run, new: store.Run, options: Options) -> Comparison:
    """Compare what two runs measured earlier; nothing is run."""
    started = time.time()
    first, second = _saved_samples(base), _saved_samples(new)
    _same_machine(first.machine, second.machine, base.id, new.id)
    trial = trial_of(
        [replace(sample, arm=BASE) for sample in first.samples]
        + [replace(sample, arm=NEW) for sample in second.samples]
    )
    run = store.create(first.side.command, options.run_dir)
    comparison = comparison_of(run, Kind.RUNS, (first.side, second.side), trial, options, started)
    if comparison.result == Result.INCONCLUSIVE:
        again = "run both again, in alternation: hotlap compare 'COMMAND' 'COMMAND'"
        comparison = replace(comparison, why=f"{comparison.why}; {again}")
    comparison = replace(comparison, machine=first.machine)
    run.save("comparison", comparison)
    return comparison


@dataclass(frozen=True, kw_only=True, slots=True)
class _SideSamples:
    side: Side
    samples: tuple[Sample, ...]
    machine: str


def _saved_samples(run: store.Run) -> _SideSamples:
    """Return the samples of the unmodified command: a tune has many such processes, a profile has one."""
    seen = run.observation() if (run.folder / "observation.json").exists() else None
    if (run.folder / "tuning.json").exists():
        tuned = run.load("tuning", TuneRecord)
        samples, command, machine = _as_written(tuned), tuned.asked.command, tuned.machine
    elif seen is not None:
        samples, command, machine = _profiled(seen), seen.command, ""
    else:
        raise NotComparable(f"{run.id} has no measured steps; compare runs of hotlap tune or hotlap profile")
    if not samples:
        raise NotComparable(f"{run.id} measured no step; run it again: hotlap profile {' '.join(command)}")
    machine = seen.machine.summary if seen else machine
    return _SideSamples(side=Side(name=run.id, command=command), samples=samples, machine=machine)


def _as_written(tuned: TuneRecord) -> tuple[Sample, ...]:
    samples = [(trial, sample) for trial in tuned.trials for sample in trial.samples]
    plain = [sample for trial, sample in samples if not (trial.base if sample.arm == BASE else trial.new)]
    return tuple(sample for sample in plain if sample.blocks and sample.ended == EndReason.MEASURED)


def _profiled(seen: Observation) -> tuple[Sample, ...]:
    samples = seen.samples_per_step or 1.0
    cuts = range(0, len(seen.step_ms) - BLOCK + 1, BLOCK)
    blocks = tuple(
        Block(first=at, steps=BLOCK, samples=samples * BLOCK, seconds=sum(seen.step_ms[at : at + BLOCK]) / 1000)
        for at in cuts
    )
    if not blocks:
        return ()
    return (
        Sample(
            number=0,
            arm=BASE,
            choices=(),
            seed_shift=0,
            ended=EndReason.MEASURED,
            why="",
            warmup_steps=0,
            warmup_seconds=0.0,
            startup_seconds=0.0,
            blocks=blocks,
            losses=seen.losses,
            readings=(),
            outcomes=(),
            host_mb=None,
            device_mb=None,
            seconds=0.0,
        ),
    )


def _same_machine(first: str, second: str, base: str, new: str) -> None:
    if first != second:
        raise NotComparable(f"{base} and {new} were measured on different machines ({first}; {second})")
