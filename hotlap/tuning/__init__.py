"""A whole tune: observe, plan, try, judge, keep. The record is saved after every process, so that it can go on."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hotlap import pipeline, store
from hotlap.errors import (
    INTERRUPTED,
    BaselineUnusable,
    HotlapError,
    RecordUnreadable,
    ResumeRefused,
    RunFolderUnwritable,
    RunNotFound,
)
from hotlap.judge.verdict import judge
from hotlap.model.codec import SCHEMA
from hotlap.model.observation import Machine, Observation
from hotlap.model.plan import Circumstances, Plan, Risk
from hotlap.model.tuning import Asked, Metric, Tuning
from hotlap.patch.launch import resolve
from hotlap.plan import saved
from hotlap.plan.candidates import candidates
from hotlap.trial.local import EARLY, Limits, LocalRunner
from hotlap.trial.order import SCRATCH
from hotlap.trial.runner import Runner, Spec
from hotlap.tuning.book import Book, Watcher
from hotlap.tuning.length import length, own_length
from hotlap.tuning.tuner import Judge, Tuner

RECORD = "tuning"
OBSERVE_SHARE = 0.25  # of the budget, at most
IDLE, IDLE_STEPS = 180.0, 50  # seconds without a step, or so many of the baseline's slowest

OnStage = pipeline.OnStage
MakeRunner = Callable[[Tuning, Observation, Path, Callable[[Spec, int], None]], Runner]


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneOptions:
    command: tuple[str, ...]
    budget_seconds: float
    risk: Risk
    metric: Metric | None
    steps: int | None
    minimum: float
    run_dir: Path | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    run: store.Run
    tuning: Tuning
    plan: Path  # where `hotlap run COMMAND` finds it


def tune(options: TuneOptions, on_stage: OnStage, watcher: Watcher) -> Tuned:
    resolve(options.command)
    began = time.monotonic()
    seen = pipeline.profile(_observing(options), on_stage)
    shutil.rmtree(seen.run.folder / "observing" / SCRATCH, ignore_errors=True)
    if seen.observation.ended == "interrupted":
        raise _interrupted("while observing; nothing was tried yet", seen.exit_code)
    if seen.exit_code != 0:
        error = BaselineUnusable(
            f"the command failed by itself (exit code {seen.exit_code}, its words are above); repair it first"
        )
        error.exit_code = seen.exit_code
        raise error
    record = _record(options, seen.run, seen.observation, time.monotonic() - began)
    length(seen.observation, record.asked)  # refuses before anything is kept
    seen.run.save(RECORD, record)
    return go_on(seen.run, record, watcher, run_dir=options.run_dir)


def resume(run: store.Run, watcher: Watcher, run_dir: Path | None = None) -> Tuned:
    """A tune that was interrupted; at most the process in flight is run again."""
    record = run.load(RECORD, Tuning)
    if record.asked.folder != str(Path.cwd()):
        raise ResumeRefused(f"{run.id} was begun in {record.asked.folder}; go on there: cd {record.asked.folder}")
    if record.circumstances.source != saved.source_hash(record.asked.command):
        command = " ".join(record.asked.command)
        raise ResumeRefused(f"the source code has changed since {run.id} was begun; start anew: hotlap tune {command}")
    return go_on(run, record, watcher, run_dir)


def go_on(
    run: store.Run,
    record: Tuning,
    watcher: Watcher,
    run_dir: Path | None = None,
    make_runner: MakeRunner | None = None,
    judging: Judge | None = None,
) -> Tuned:
    """From wherever the record is to its end."""
    observation = run.observation()
    tuner: Tuner | None = None

    def stepped(spec: Spec, step: int) -> None:
        if tuner is not None:
            tuner.stepped(step)

    runner = (make_runner or _local)(record, observation, run.folder / "trials", stepped)

    def save(changed: Tuning) -> None:
        if runner.hardware is not None and runner.hardware != changed.circumstances.hardware:
            changed = replace(changed, circumstances=replace(changed.circumstances, hardware=runner.hardware))
        run.save(RECORD, changed)

    book = Book(record, save, watcher)
    tuner = Tuner(book, length(observation, record.asked), runner, judging or judge)
    place = saved.place(run_dir or store.home(), record.asked.command)
    try:
        tuner.run()
    except KeyboardInterrupt as stop:
        kept = run.load(RECORD, Tuning)
        if kept.kept:
            _save_plan(run, kept, place)
        names = ", ".join(one.name for one in kept.kept) or "nothing"
        raise _interrupted(f"kept so far: {names}; go on: hotlap tune --resume {run.id}") from stop
    except RunFolderUnwritable as error:
        raise RunFolderUnwritable(f"{error}; then go on, nothing is lost: hotlap tune --resume {run.id}") from error
    done = run.load(RECORD, Tuning)
    _save_plan(run, done, place)
    return Tuned(run=run, tuning=done, plan=place)


def unfinished(command: tuple[str, ...] | None, run_dir: Path | None, missing_ok: bool = False) -> store.Run | None:
    """The newest tune of this command (of any, without) that has not come to its end."""
    root = (run_dir or store.home()) / "runs"
    for folder in sorted(root.glob(f"*/{RECORD}.json"), reverse=True):
        run = store.Run(folder.parent)
        try:
            record = run.load(RECORD, Tuning)
        except RecordUnreadable:
            continue
        if not record.finished and (command is None or record.asked.command == command):
            return run
    if missing_ok:
        return None
    raise RunNotFound(f"no tune in {root} is unfinished; start one: hotlap tune python train.py")


def _interrupted(what: str, code: int = INTERRUPTED) -> HotlapError:
    error = HotlapError(f"interrupted, {what}")
    error.exit_code = code
    return error


def _observing(options: TuneOptions) -> pipeline.ProfileOptions:
    return pipeline.ProfileOptions(
        command=options.command,
        steps=None,
        warmup=None,
        max_seconds=max(10.0, OBSERVE_SHARE * options.budget_seconds),
        full=False,
        ceiling=False,
        trace=False,
        run_dir=options.run_dir,
        early=EARLY,
    )


def _record(options: TuneOptions, run: store.Run, seen: Observation, spent: float) -> Tuning:
    found = candidates(seen, options.risk, options.minimum)
    return Tuning(
        schema=SCHEMA,
        run=run.id,
        asked=Asked(
            command=options.command,
            budget_seconds=options.budget_seconds,
            risk=options.risk.value,
            metric=options.metric,
            steps=options.steps,
            minimum=options.minimum,
            folder=str(Path.cwd()),
        ),
        started=seen.started,
        circumstances=Circumstances(
            command=options.command,
            source=saved.source_hash(options.command),
            torch=seen.machine.torch,
            hardware=_hardware(seen.machine),
        ),
        machine=_machine(seen.machine),
        versions=(("python", seen.machine.python), ("torch", seen.machine.torch), *seen.machine.versions.items()),
        candidates=found.found,
        not_tried=found.not_tried,
        trials=(),
        verdicts=(),
        kept=(),
        seconds=spent,
        finished=False,
        full_steps=own_length(seen),
        observing_seconds=spent,
    )


def _machine(machine: Machine) -> str:
    gpu = f", {machine.gpus} × {machine.gpu}" if machine.gpu else ""
    return f"{machine.cpu}, {machine.cores} cores{gpu}"


def _hardware(machine: Machine) -> str:
    """Until a process of a trial has told its own."""
    if machine.gpu:
        return f"{machine.gpus} × {machine.gpu}"
    return f"{os.cpu_count()} cores, {platform.machine()}"


def _local(record: Tuning, seen: Observation, folder: Path, on_steps: Callable[[Spec, int], None]) -> Runner:
    slowest = max(seen.step_ms, default=0.0) / 1000
    return LocalRunner(
        record.asked.command,
        folder,
        seen.samples_per_step or 1.0,
        metric=record.asked.metric,
        limits=Limits(idle=max(IDLE, IDLE_STEPS * slowest)),
        on_steps=on_steps,
    )


def _save_plan(run: store.Run, record: Tuning, place: Path) -> None:
    plan = Plan(schema=SCHEMA, title=f"tune {run.id}", choices=record.kept, proven=record.circumstances)
    run.save("plan", plan)
    place.parent.mkdir(parents=True, exist_ok=True)
    store.Run(place.parent).save(place.stem, plan)
