"""A whole tune: observe, plan, try, judge, keep. The record is saved after every process, so that it can be resumed."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hotlap import store
from hotlap.errors import INTERRUPTED, BaselineUnusable, HotlapError, NeverStepped, RunFolderUnwritable
from hotlap.judge.verdict import judge
from hotlap.machine import usable_cores
from hotlap.plan import saved_plan, signature
from hotlap.plan.candidates import candidates
from hotlap.process.launch import resolve
from hotlap.records import private
from hotlap.records.codec import SCHEMA
from hotlap.records.observation import Machine, Observation
from hotlap.records.plan import Circumstances, Plan, Risk
from hotlap.records.tune_record import Metric, TuneRecord, TuneRequest
from hotlap.trial.foreign import foreign
from hotlap.trial.keeper import Keeper, folders_at_stake
from hotlap.trial.local import EARLY, Limits, LocalRunner
from hotlap.trial.order import SCRATCH
from hotlap.trial.runner import Runner, Spec
from hotlap.workflows import profile as profiling
from hotlap.workflows.tune.book import Book, Watcher
from hotlap.workflows.tune.length import epoch_length, length, own_length
from hotlap.workflows.tune.resumption import (
    ASKED,
    RECORD,
    alone,
    as_measured,
    begun,
    refuse_elsewhere,
    refuse_other_catalogue,
    refuse_other_circumstances,
    refuse_other_options,
    refuse_other_source,
    unfinished,
)
from hotlap.workflows.tune.tuner import Judge, Tuner

OBSERVE_SHARE, OBSERVE_LEAST = 0.25, 30.0  # of the budget, at most; seconds, regardless of the budget
IDLE, IDLE_STEPS = 180.0, 50  # seconds without a step, or this many times the baseline's slowest step

__all__ = ["RECORD", "TuneOptions", "TuneResult", "asked", "go_on", "resume", "tune", "unfinished"]

OnStage = profiling.OnStage
MakeRunner = Callable[[TuneRecord, Observation, Path, Callable[[Spec, int], None]], Runner]


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneOptions:
    command: tuple[str, ...]
    budget_seconds: float
    risk: Risk
    metric: Metric | None
    steps: int | None
    minimum: float
    run_dir: Path | None
    memory_mb: float | None = None  # of the host, for all processes of a trial together
    device_mb: float | None = None  # of each device


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneResult:
    run: store.Run
    tuning: TuneRecord
    plan: Path  # where `hotlap run COMMAND` finds it


def tune(options: TuneOptions, on_stage: OnStage, watcher: Watcher, instead_of: store.Run | None = None) -> TuneResult:
    """Run a tune. `instead_of` is a tune that got no further than observing and is replaced by this one."""
    resolve(options.command)
    began = time.monotonic()
    keeper = UserFiles(watcher)
    try:
        return _tune(options, on_stage, watcher, instead_of, keeper, began)
    finally:
        keeper.close()


def _tune(
    options: TuneOptions,
    on_stage: OnStage,
    watcher: Watcher,
    instead_of: store.Run | None,
    files: UserFiles,
    began: float,
) -> TuneResult:
    seen = _observed(options, on_stage, instead_of, files)
    record = _record(options, seen.run, seen.observation, time.monotonic() - began)
    length(seen.observation, record.asked, record.observing_seconds)  # raises before anything is saved
    seen.run.save(RECORD, record)
    _forget(seen.run)
    if (others := foreign(seen.run.folder / "observing")) is not None:
        watcher.caution(others)
    return go_on(seen.run, record, watcher, run_dir=options.run_dir, files=files)


class UserFiles:
    """Protects the user's files from the first process on."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.keeper: Keeper | None = None

    def begin(self, run: store.Run, command: tuple[str, ...]) -> Keeper:
        if self.keeper is None:
            runs = run.folder.parent
            ours = (runs, runs.parent / "plans")
            self.keeper = Keeper(run.folder / "files", folders_at_stake(command), self._watcher.caution, ours)
        return self.keeper

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self.keeper.lines) if self.keeper is not None else ()

    def close(self) -> None:
        if self.keeper is not None:
            self.keeper.close()


def _observed(
    options: TuneOptions, on_stage: OnStage, instead_of: store.Run | None, files: UserFiles
) -> profiling.Profile:
    """Observe the command. The request is saved first, so that a tune killed while observing can be resumed too."""
    runs: list[store.Run] = []

    def created(run: store.Run) -> None:
        runs.append(run)
        with suppress(private.Unfit, OSError):  # reported when there is a plan to sign
            signature.mark(run.folder, store.key_root())
        run.save(ASKED, asked(options))
        files.begin(run, options.command)
        if instead_of is not None:
            _forget(instead_of)  # only now: the request must be in one of the two at any time

    try:
        seen = profiling.profile(_observing(options, created), on_stage)
    except HotlapError as error:
        if runs and error.exit_code == INTERRUPTED:
            raise _interrupted(_start_over(runs[0])) from error
        if runs:
            _forget(runs[0])
        if isinstance(error, NeverStepped):
            raise _never_stepped(options) from error
        raise
    finally:
        if runs and files.keeper is not None:
            watched = runs[0].folder / "observing"
            files.keeper.process_ended(watched, watched / SCRATCH)
            shutil.rmtree(watched / SCRATCH, ignore_errors=True)
    if seen.observation.ended == "interrupted":
        raise _interrupted(_start_over(seen.run))
    if seen.exit_code != 0:
        _forget(seen.run)
        raise _failed_by_itself(seen.exit_code)
    return seen


def _start_over(run: store.Run) -> str:
    return f"nothing was tried yet; start over: hotlap tune --resume {run.id}"


def _forget(run: store.Run) -> None:
    (run.folder / f"{ASKED}.json").unlink(missing_ok=True)


def _never_stepped(options: TuneOptions) -> NeverStepped:
    """Return an error in place of that of `hotlap profile`, which names an option that a tune lacks."""
    minutes = max(2, round(4 * options.budget_seconds / 60))
    return NeverStepped(
        f"no training step within {_observing_seconds(options):.0f} s, the most that observing may take; give it more "
        f"time: --budget {minutes}m"
    )


def _failed_by_itself(exit_code: int) -> BaselineUnusable:
    error = BaselineUnusable(
        f"the unmodified command failed (exit code {exit_code}, see its output above); fix it first"
    )
    error.exit_code = exit_code
    return error


def resume(
    run: store.Run,
    watcher: Watcher,
    on_stage: OnStage,
    run_dir: Path | None = None,
    given: Mapping[str, tuple[str, object]] | None = None,
) -> TuneResult:
    """Resume an interrupted tune; at most the process that was in flight is run again.

    `given` holds the options typed with --resume, by the field of TuneRequest they set.
    """
    record = run.load(RECORD, TuneRecord) if begun(run) or not (run.folder / f"{ASKED}.json").exists() else None
    request = record.asked if record is not None else run.load(ASKED, TuneRequest)
    refuse_elsewhere(run, request)
    refuse_other_options(run, request, given or {})
    if record is None:
        return tune(_options(request, run_dir), on_stage, watcher, instead_of=run)
    refuse_other_source(run, record)
    refuse_other_catalogue(run, record)
    return go_on(run, record, watcher, run_dir)


def go_on(
    run: store.Run,
    record: TuneRecord,
    watcher: Watcher,
    run_dir: Path | None = None,
    make_runner: MakeRunner | None = None,
    judging: Judge | None = None,
    files: UserFiles | None = None,
) -> TuneResult:
    """Continue a tune from wherever its record is to the end."""
    own = files or UserFiles(watcher)
    with alone(run):
        try:
            if make_runner is None:
                make_runner = partial(_local, keeper=own.begin(run, record.asked.command))
            home, judging = run_dir or store.home(), judging or _judge(record)
            return _go_on(run, record, watcher, home, make_runner, judging, own)
        finally:
            if files is None:
                own.close()


def _judge(record: TuneRecord) -> Judge:
    return partial(judge, epoch_steps=record.epoch_steps)


def _go_on(
    run: store.Run,
    record: TuneRecord,
    watcher: Watcher,
    home: Path,
    make_runner: MakeRunner,
    judge_trial: Judge,
    user_files: UserFiles,
) -> TuneResult:
    observation = run.observation()
    tuner: Tuner | None = None

    def stepped(spec: Spec, step: int) -> None:
        if tuner is not None:
            tuner.stepped(step)

    runner = make_runner(record, observation, run.folder / "trials", stepped)

    def save(changed: TuneRecord) -> None:
        now = as_measured(changed.circumstances, runner)
        if record.trials:
            refuse_other_circumstances(run.id, record, now)
        files = tuple(dict.fromkeys((*record.files, *user_files.lines)))
        run.save(RECORD, replace(changed, circumstances=now, files=files))

    steps = length(observation, record.asked, record.observing_seconds)
    tuner = Tuner(Book(record, save, watcher), steps, runner, judge_trial)
    place = saved_plan.place(home, record.asked.command)
    try:
        tuner.run()
    except KeyboardInterrupt as stop:
        record_so_far = run.load(RECORD, TuneRecord)
        if record_so_far.kept:
            _save_plan(run, record_so_far, place, watcher)
        names = ", ".join(choice.name for choice in record_so_far.kept) or "nothing"
        raise _interrupted(f"kept so far: {names}; continue: hotlap tune --resume {run.id}") from stop
    except RunFolderUnwritable as error:
        what = str(error).partition(";")[0]  # another folder would not have this record
        again = f"make room, then continue; nothing is lost: hotlap tune --resume {run.id}"
        raise RunFolderUnwritable(f"{what}; {again}") from error
    done = run.load(RECORD, TuneRecord)
    _save_plan(run, done, place, watcher)
    return TuneResult(run=run, tuning=done, plan=place)


def _interrupted(what: str) -> HotlapError:
    error = HotlapError(f"interrupted; {what}")
    error.exit_code = INTERRUPTED
    return error


def _observing_seconds(options: TuneOptions) -> float:
    return max(OBSERVE_LEAST, OBSERVE_SHARE * options.budget_seconds)


def _observing(options: TuneOptions, created: Callable[[store.Run], None]) -> profiling.ProfileOptions:
    return profiling.ProfileOptions(
        command=options.command,
        steps=None,
        warmup=None,
        max_seconds=_observing_seconds(options),
        full=False,
        ceiling=False,
        trace=False,
        run_dir=options.run_dir,
        early=EARLY,
        on_created=created,
    )


def asked(options: TuneOptions) -> TuneRequest:
    return TuneRequest(
        command=options.command,
        budget_seconds=options.budget_seconds,
        risk=options.risk,
        metric=options.metric,
        steps=options.steps,
        minimum=options.minimum,
        folder=str(Path.cwd()),
        memory_mb=options.memory_mb,
        device_mb=options.device_mb,
    )


def _options(request: TuneRequest, run_dir: Path | None) -> TuneOptions:
    return TuneOptions(
        command=request.command,
        budget_seconds=request.budget_seconds,
        risk=request.risk,
        metric=request.metric,
        steps=request.steps,
        minimum=request.minimum,
        run_dir=run_dir,
        memory_mb=request.memory_mb,
        device_mb=request.device_mb,
    )


def _record(options: TuneOptions, run: store.Run, seen: Observation, spent: float) -> TuneRecord:
    found = candidates(seen, options.risk, options.minimum)
    return TuneRecord(
        schema=SCHEMA,
        run=run.id,
        asked=asked(options),
        started=seen.started,
        circumstances=Circumstances(
            command=options.command,
            source=saved_plan.source_hash(options.command),
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
        epoch_steps=epoch_length(seen),
        observing_seconds=spent,
    )


def _machine(machine: Machine) -> str:
    gpu = f", {machine.gpus} × {machine.gpu}" if machine.gpu else ""
    return f"{machine.cpu}, {machine.cores} cores{gpu}"


def _hardware(machine: Machine) -> str:
    """Describe the hardware until a trial process has reported its own."""
    if machine.gpu:
        return f"{machine.gpus} × {machine.gpu}"
    return f"{usable_cores()} cores, {platform.machine()}"


def _local(
    record: TuneRecord,
    seen: Observation,
    folder: Path,
    on_steps: Callable[[Spec, int], None],
    keeper: Keeper | None = None,
) -> Runner:
    slowest = max(seen.step_ms, default=0.0) / 1000
    return LocalRunner(
        record.asked.command,
        folder,
        seen.samples_per_step or 1.0,
        metric=record.asked.metric,
        limits=Limits(
            idle=max(IDLE, IDLE_STEPS * slowest),
            memory_mb=record.asked.memory_mb,
            device_mb=record.asked.device_mb,
        ),
        on_steps=on_steps,
        keeper=keeper,
    )


def _save_plan(run: store.Run, record: TuneRecord, place: Path, watcher: Watcher) -> None:
    """Save the plan, signed only if the user's own tune started this run: one from a repository may hold anything."""
    plan = Plan(
        schema=SCHEMA,
        title=f"tune {run.id}",
        choices=record.kept,
        proven=record.circumstances,
        origin=saved_plan.origin(),
    )
    try:
        signature.refuse_unmarked(run.folder, store.key_root())
        plan = signature.signed(plan, store.key_root())
    except (private.Unfit, OSError) as error:
        watcher.caution(f"{error}; so hotlap run does not apply the plan automatically; name it: --plan {place}")
    run.save("plan", plan)
    store.prepare(place.parent.parent, place.parent.name)
    store.Run(place.parent).save(place.stem, plan)
