"""Resuming a tune: which one is meant, and whether its measurements are still valid."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from hotlap import store
from hotlap.catalog import entries
from hotlap.errors import (
    INTERRUPTED,
    BudgetTooSmall,
    HotlapError,
    MetricNeverSeen,
    RecordUnreadable,
    ResumeRefused,
    RunFolderUnwritable,
    RunNotFound,
    TooShort,
)
from hotlap.plan import saved_plan
from hotlap.process import tree
from hotlap.records.plan import Circumstances
from hotlap.records.tune_record import TuneRecord, TuneRequest
from hotlap.trial.runner import Runner

RECORD = "tuning"
ASKED = "asked"  # saved from the start: a tune that is killed while observing has nothing else


def unfinished(command: tuple[str, ...] | None, run_dir: Path | None, missing_ok: bool = False) -> store.Run | None:
    """Return the newest unfinished tune of this command, or of any command if it is None."""
    root = (run_dir or store.home()) / "runs"
    for folder in sorted((folder for folder in root.glob("*") if folder.is_dir()), reverse=True):
        request = _unfinished_request(store.Run(folder))
        if request is not None and (command is None or request.command == command):
            return store.Run(folder)
    if missing_ok:
        return None
    raise RunNotFound(f"there is no unfinished tune in {root}; start one: hotlap tune python train.py")


def _unfinished_request(run: store.Run) -> TuneRequest | None:
    try:
        if begun(run):
            record = run.load(RECORD, TuneRecord)
            return None if record.finished else record.asked
        return run.load(ASKED, TuneRequest)
    except (RecordUnreadable, RunNotFound):
        return None


def begun(run: store.Run) -> bool:
    """Whether the tune got past observing."""
    return (run.folder / f"{RECORD}.json").exists()


def refuse_elsewhere(run: store.Run, request: TuneRequest) -> None:
    if request.folder != str(Path.cwd()):
        raise ResumeRefused(f"{run.id} was started in {request.folder}; resume it there: cd {request.folder}")


def refuse_other_source(run: store.Run, record: TuneRecord) -> None:
    if record.circumstances.source != saved_plan.source_hash(record.asked.command):
        raise ResumeRefused(f"the source code has changed since {run.id} was started; {_start_over(record.asked)}")


def refuse_other_catalogue(run: store.Run, record: TuneRecord) -> None:
    """Refuse a tune of another hotlap, whose candidates are not all optimisations of this one."""
    missing = sorted({candidate.entry for candidate in record.candidates} - set(entries()))
    if missing:
        raise ResumeRefused(
            f"{run.id} tries {', '.join(missing)}, which this version of hotlap does not apply; "
            + _start_over(record.asked)
        )


def refuse_other_options(run: store.Run, request: TuneRequest, given: Mapping[str, tuple[str, object]]) -> None:
    """Refuse to change an option halfway. `given` holds the options typed with --resume, by the field they set."""
    for field, (option, value) in given.items():
        if getattr(request, field) != value:
            raise ResumeRefused(
                f"{run.id} was started with a different {option}; leave {option} out to resume it unchanged, or leave "
                "--resume out to start over"
            )


def as_measured(known: Circumstances, runner: Runner) -> Circumstances:
    """Return the circumstances as the last process reported them."""
    return replace(known, hardware=runner.hardware or known.hardware, torch=runner.torch or known.torch)


def refuse_other_circumstances(run: str, record: TuneRecord, now: Circumstances) -> None:
    before = record.circumstances
    for what, old, new in (("torch", before.torch, now.torch), ("hardware", before.hardware, now.hardware)):
        if old != new:
            raise ResumeRefused(f"{run} was measured with {what} {old}, but this is {new}; {_start_over(record.asked)}")


def _start_over(request: TuneRequest) -> str:
    return f"start over: hotlap tune {' '.join(request.command)}"


def interrupted(what: str) -> HotlapError:
    error = HotlapError(f"interrupted; {what}")
    error.exit_code = INTERRUPTED
    return error


@contextmanager
def alone(run: store.Run) -> Iterator[None]:
    """Let only one process at a time work on a tune: two would overwrite each other's record."""
    other = tree.alive(run.folder)
    if other is not None and other != os.getpid():
        raise ResumeRefused(
            f"{run.id} is already running in process {other}; wait for it, or end it first: kill {other}"
        )
    try:
        tree.remember(os.getpid(), run.folder)
    except OSError as error:
        raise RunFolderUnwritable(f"cannot write {run.folder} ({error.strerror}); make room on the disk") from error
    try:
        yield
    finally:
        with suppress(OSError):
            (run.folder / tree.PID).unlink()


@contextmanager
def forgotten_if_refused(run: store.Run) -> Iterator[None]:
    """Leave nothing to resume where that would end with the same refusal: what stays of the run is its profile."""
    try:
        yield
    except (BudgetTooSmall, MetricNeverSeen, TooShort):
        (run.folder / f"{ASKED}.json").unlink(missing_ok=True)
        if begun(run) and not run.load(RECORD, TuneRecord).verdicts:
            (run.folder / f"{RECORD}.json").unlink()
        raise
