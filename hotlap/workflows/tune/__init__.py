"""A whole tune: observe, plan, try, judge, keep. The record is saved after every process, so that it can be resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hotlap import store
from hotlap.errors import PlanUnusable, RunFolderUnwritable
from hotlap.judge.verdict import judge
from hotlap.plan import saved_plan, signature
from hotlap.plan.files import read
from hotlap.process.launch import resolve
from hotlap.records import private
from hotlap.records.codec import SCHEMA
from hotlap.records.observation import Observation
from hotlap.records.plan import Plan
from hotlap.records.trial import TrialStage
from hotlap.records.tune_record import TuneRecord, TuneRequest
from hotlap.records.verdict import Decision
from hotlap.trial.foreign import foreign
from hotlap.trial.keeper import Keeper
from hotlap.trial.local import LocalRunner
from hotlap.trial.runner import Runner, Spec
from hotlap.trial.trial_process import Limits
from hotlap.workflows.tune.book import Book, Watcher
from hotlap.workflows.tune.length import length
from hotlap.workflows.tune.observation import OnStage, begin_record, forget_request, observed
from hotlap.workflows.tune.resumption import (
    ASKED,
    RECORD,
    alone,
    as_measured,
    begun,
    forgotten_if_refused,
    interrupted,
    refuse_elsewhere,
    refuse_other_catalogue,
    refuse_other_circumstances,
    refuse_other_options,
    refuse_other_source,
    unfinished,
)
from hotlap.workflows.tune.trials import Judge
from hotlap.workflows.tune.tuner import Tuner
from hotlap.workflows.tune.user_files import UserFiles

IDLE, IDLE_STEPS = 180.0, 50  # seconds without a step, or this many times the baseline's slowest step

__all__ = ["RECORD", "TuneResult", "go_on", "resume", "tune", "unfinished"]

MakeRunner = Callable[[TuneRecord, Observation, Path, Callable[[Spec, int], None]], Runner]


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneResult:
    run: store.Run
    tuning: TuneRecord
    plan: Path  # where `hotlap run COMMAND` finds it


def tune(
    request: TuneRequest,
    on_stage: OnStage,
    watcher: Watcher,
    run_dir: Path | None = None,
    instead_of: store.Run | None = None,
) -> TuneResult:
    """Run a tune. `instead_of` is a tune that got no further than observing and is replaced by this one."""
    resolve(request.command)
    began = time.monotonic()
    files = UserFiles(watcher)
    try:
        seen = observed(request, run_dir, on_stage, instead_of, files)
        record = begin_record(request, seen.run, seen.observation, time.monotonic() - began)
        with forgotten_if_refused(seen.run):
            length(seen.observation, request, record.observing_seconds)  # raises before anything is saved
        seen.run.save(RECORD, record)
        forget_request(seen.run)
        if (others := foreign(seen.run.folder / "observing")) is not None:
            watcher.caution(others)
        return go_on(seen.run, record, watcher, run_dir, files=files)
    finally:
        files.close()


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
        return tune(request, on_stage, watcher, run_dir, instead_of=run)
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
            home, judging = run_dir or store.home(), judging or partial(judge, epoch_steps=record.epoch_steps)
            with forgotten_if_refused(run):
                return _go_on(run, record, watcher, home, make_runner, judging, own)
        finally:
            if files is None:
                own.close()


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
            tuner.trials.stepped(step)

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
        raise interrupted(f"kept so far: {names}; continue: hotlap tune --resume {run.id}") from stop
    except RunFolderUnwritable as error:
        what = str(error).partition(";")[0]  # another folder would not have this record
        again = f"make room, then continue; nothing is lost: hotlap tune --resume {run.id}"
        raise RunFolderUnwritable(f"{what}; {again}") from error
    done = run.load(RECORD, TuneRecord)
    _save_plan(run, done, place, watcher)
    return TuneResult(run=run, tuning=done, plan=place)


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
    if not record.kept and _earlier_holds(place, record):
        watcher.caution("nothing was kept, and nothing spoke against the plan of an earlier tune: hotlap run keeps it")
        return
    store.prepare(place.parent.parent, place.parent.name)
    store.Run(place.parent).save(place.stem, plan)


def _earlier_holds(place: Path, record: TuneRecord) -> bool:
    """Return whether a plan was proven under the same circumstances, and this tune rejected nothing that is in it."""
    try:
        earlier, is_signed = read(place, store.key_root())
    except (PlanUnusable, RunFolderUnwritable, OSError):
        return False
    names = {choice.name for choice in earlier.choices}
    judged = [verdict for verdict in record.verdicts if verdict.stage != TrialStage.NOISE]
    rejected = {verdict.entry for verdict in judged if verdict.decision == Decision.REJECT}
    same = earlier.proven == record.circumstances
    return bool(names) and is_signed and same and None not in rejected and not names & rejected
