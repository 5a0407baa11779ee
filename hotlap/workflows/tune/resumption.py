"""Going on with a tune: which one is meant, and whether what was measured still holds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from hotlap import store
from hotlap.errors import RecordUnreadable, ResumeRefused, RunFolderUnwritable, RunNotFound
from hotlap.plan import saved_plan
from hotlap.process import tree
from hotlap.records.plan import Circumstances
from hotlap.records.tune_record import TuneRecord, TuneRequest
from hotlap.trial.runner import Runner

RECORD = "tuning"
ASKED = "asked"  # kept from the first moment: a tune that is killed while observing has nothing else


def unfinished(command: tuple[str, ...] | None, run_dir: Path | None, missing_ok: bool = False) -> store.Run | None:
    """The newest tune of this command (of any, without) that has not come to its end."""
    root = (run_dir or store.home()) / "runs"
    for folder in sorted((one for one in root.glob("*") if one.is_dir()), reverse=True):
        asked = _asked_of_unfinished(store.Run(folder))
        if asked is not None and (command is None or asked.command == command):
            return store.Run(folder)
    if missing_ok:
        return None
    raise RunNotFound(f"no tune in {root} is unfinished; start one: hotlap tune python train.py")


def _asked_of_unfinished(run: store.Run) -> TuneRequest | None:
    try:
        if begun(run):
            record = run.load(RECORD, TuneRecord)
            return None if record.finished else record.asked
        return run.load(ASKED, TuneRequest)
    except (RecordUnreadable, RunNotFound):
        return None


def begun(run: store.Run) -> bool:
    """Whether it got past observing."""
    return (run.folder / f"{RECORD}.json").exists()


def refuse_elsewhere(run: store.Run, asked: TuneRequest) -> None:
    if asked.folder != str(Path.cwd()):
        raise ResumeRefused(f"{run.id} was begun in {asked.folder}; go on there: cd {asked.folder}")


def refuse_other_source(run: store.Run, record: TuneRecord) -> None:
    if record.circumstances.source != saved_plan.source_hash(record.asked.command):
        raise ResumeRefused(f"the source code has changed since {run.id} was begun; {_anew(record.asked)}")


def refuse_other_options(run: store.Run, asked: TuneRequest, given: Mapping[str, tuple[str, object]]) -> None:
    """`given`: options typed beside --resume, by the field they set. A tune of two minds proves nothing."""
    for field, (option, value) in given.items():
        if getattr(asked, field) != value:
            raise ResumeRefused(
                f"{run.id} was begun with another {option}; leave {option} out to go on with it as it was, or leave "
                "--resume out to start anew"
            )


def as_measured(known: Circumstances, runner: Runner) -> Circumstances:
    """The circumstances as the last process told them."""
    return replace(known, hardware=runner.hardware or known.hardware, torch=runner.torch or known.torch)


def refuse_other_circumstances(run: str, record: TuneRecord, now: Circumstances) -> None:
    before = record.circumstances
    for what, old, new in (("torch", before.torch, now.torch), ("hardware", before.hardware, now.hardware)):
        if old != new:
            raise ResumeRefused(f"{run} was measured with other {what} ({old}), this is {new}; {_anew(record.asked)}")


def _anew(asked: TuneRequest) -> str:
    return f"start anew: hotlap tune {' '.join(asked.command)}"


@contextmanager
def alone(run: store.Run) -> Iterator[None]:
    """One process at a time goes on with a tune: two would write each other's record."""
    other = tree.alive(run.folder)
    if other is not None and other != os.getpid():
        raise ResumeRefused(f"{run.id} is under way in process {other}; wait for it, or end it first: kill {other}")
    try:
        tree.remember(os.getpid(), run.folder)
    except OSError as error:
        raise RunFolderUnwritable(f"cannot write {run.folder} ({error.strerror}); make room") from error
    try:
        yield
    finally:
        with suppress(OSError):
            (run.folder / tree.PID).unlink()
