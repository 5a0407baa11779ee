"""Observes the unmodified command, which begins the record of a tune."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hotlap import store
from hotlap.errors import INTERRUPTED, BaselineUnusable, HotlapError, NeverStepped
from hotlap.machine import usable_cores
from hotlap.plan import saved_plan, signature
from hotlap.plan.candidates import candidates
from hotlap.records import private
from hotlap.records.codec import SCHEMA
from hotlap.records.observation import Machine, Observation
from hotlap.records.plan import Circumstances
from hotlap.records.tune_record import TuneRecord, TuneRequest
from hotlap.trial.local import EARLY
from hotlap.trial.order import SCRATCH
from hotlap.workflows import profile as profiling
from hotlap.workflows.tune.length import epoch_length, own_length
from hotlap.workflows.tune.resumption import ASKED, interrupted
from hotlap.workflows.tune.user_files import UserFiles

OBSERVE_SHARE, OBSERVE_LEAST = 0.25, 30.0  # of the budget, at most; seconds, regardless of the budget
OnStage = profiling.OnStage


def observed(
    request: TuneRequest, run_dir: Path | None, on_stage: OnStage, instead_of: store.Run | None, files: UserFiles
) -> profiling.Profile:
    """Observe the command. The request is saved first, so that a tune killed while observing can be resumed too."""
    runs: list[store.Run] = []

    def created(run: store.Run) -> None:
        runs.append(run)
        with suppress(private.Unfit, OSError):  # reported when there is a plan to sign
            signature.mark(run.folder, store.key_root())
        run.save(ASKED, request)
        files.begin(run, request.command)
        if instead_of is not None:
            forget_request(instead_of)  # only now: the request must be in one of the two at any time

    try:
        seen = profiling.profile(_profile_options(request, run_dir, created), on_stage)
    except HotlapError as error:
        if runs and error.exit_code == INTERRUPTED:
            raise interrupted(_start_over(runs[0])) from error
        if runs:
            forget_request(runs[0])
        if isinstance(error, NeverStepped):
            raise _never_stepped(request) from error
        raise
    finally:
        if runs and files.keeper is not None:
            watched = runs[0].folder / "observing"
            files.keeper.process_ended(watched, watched / SCRATCH)
            shutil.rmtree(watched / SCRATCH, ignore_errors=True)
    if seen.observation.ended == "interrupted":
        raise interrupted(_start_over(seen.run))
    if seen.exit_code != 0:
        forget_request(seen.run)
        raise _failed_by_itself(seen.exit_code)
    return seen


def _start_over(run: store.Run) -> str:
    return f"nothing was tried yet; continue: hotlap tune --resume {run.id}"


def forget_request(run: store.Run) -> None:
    (run.folder / f"{ASKED}.json").unlink(missing_ok=True)


def _never_stepped(request: TuneRequest) -> NeverStepped:
    """Return an error in place of that of `hotlap profile`, which names an option that a tune lacks."""
    minutes = max(2, round(4 * request.budget_seconds / 60))
    return NeverStepped(
        f"no training step within {_observing_seconds(request):.0f} s, the most that observing may take; give it more "
        f"time: --budget {minutes}m"
    )


def _failed_by_itself(exit_code: int) -> BaselineUnusable:
    error = BaselineUnusable(
        f"the unmodified command failed (exit code {exit_code}, see its output above); fix it first"
    )
    error.exit_code = exit_code
    return error


def _observing_seconds(request: TuneRequest) -> float:
    return max(OBSERVE_LEAST, OBSERVE_SHARE * request.budget_seconds)


def _profile_options(
    request: TuneRequest, run_dir: Path | None, created: Callable[[store.Run], None]
) -> profiling.ProfileOptions:
    return profiling.ProfileOptions(
        command=request.command,
        max_seconds=_observing_seconds(request),
        run_dir=run_dir,
        early=EARLY,
        on_created=created,
    )


def begin_record(request: TuneRequest, run: store.Run, seen: Observation, spent: float) -> TuneRecord:
    found = candidates(seen, request.risk, request.minimum)
    return TuneRecord(
        schema=SCHEMA,
        run=run.id,
        asked=request,
        started=seen.started,
        circumstances=Circumstances(
            command=request.command,
            source=saved_plan.source_hash(request.command),
            torch=seen.machine.torch,
            hardware=_hardware(seen.machine),
        ),
        machine=seen.machine.summary,
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


def _hardware(machine: Machine) -> str:
    """Describe the hardware until a trial process has reported its own."""
    if machine.gpu:
        return f"{machine.gpus} × {machine.gpu}"
    return f"{usable_cores()} cores, {platform.machine()}"
