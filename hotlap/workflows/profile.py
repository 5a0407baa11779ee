"""hotlap profile: observe, then diagnose; each record is saved the moment it exists."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from hotlap import scanning, store
from hotlap.diagnose import diagnose
from hotlap.diagnose.step import Step
from hotlap.errors import (
    INTERRUPTED,
    HotlapError,
    NeverStepped,
    NoStep,
    NotPython,
    RunFolderUnwritable,
    TorchUnusable,
)
from hotlap.observe.join import join, read_parts
from hotlap.observe.supervise import CommandExit, supervise
from hotlap.patch.voice import ears
from hotlap.process.launch import resolve
from hotlap.process.others import CoreSeconds, compete
from hotlap.records.caution import Caution
from hotlap.records.codec import SCHEMA
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.observation import Ceiling, Observation
from hotlap.records.progress import Progress
from hotlap.records.session import Session

AGENT = "hotlap.observe.agent:start"
OBSERVING, CEILING = "observing", "ceiling"  # stages; the output of the command is hidden in the second
UNEQUAL = (
    "the second run, on one cached batch, was faster than the wait for data explains: the machine was busier in "
    "one of the two, or its batches are unequal"
)
OnStage = Callable[[str, Progress | None, float], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileOptions:
    command: tuple[str, ...]
    steps: int | None = None
    warmup: int | None = None
    max_seconds: float
    full: bool = False
    ceiling: bool = False
    trace: bool = False
    run_dir: Path | None
    early: str | None = None  # as in Session
    quiet: bool = False  # hide what the command prints
    on_created: Callable[[store.Run], None] | None = None  # called with the run before the command starts


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    run: store.Run
    observation: Observation
    diagnosis: Diagnosis
    exit_code: int
    died_by: int | None  # the signal that ended the command


def profile(options: ProfileOptions, on_stage: OnStage) -> Profile:
    resolve(options.command)
    run = store.create(options.command, options.run_dir)
    if options.on_created is not None:
        options.on_created(run)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    observation, ending = observe(options, run, OBSERVING, on_stage)
    try:
        return _finish(options, run, replace(observation, started=started), ending, on_stage)
    except RunFolderUnwritable as error:
        error.exit_code = _exit_code(ending) or error.exit_code  # a command that failed keeps its own
        error.died_by = ending.died_by
        raise


def _finish(
    options: ProfileOptions, run: store.Run, observation: Observation, ending: CommandExit, on_stage: OnStage
) -> Profile:
    run.save("observation", observation)
    if ending.exit_code == 0 and not ending.interrupted:
        observation = replace(observation, ceiling=_ceiling(options, observation, run, on_stage))
        run.save("observation", observation)
    diagnosis = _diagnosis(observation)
    run.save("diagnosis", diagnosis)
    return Profile(
        run=run, observation=observation, diagnosis=diagnosis, exit_code=_exit_code(ending), died_by=ending.died_by
    )


def _diagnosis(observation: Observation) -> Diagnosis:
    """Diagnose with the source code in view; if scanning fails, the diagnosis only lacks the fixes."""
    try:
        scan = scanning.scan_program(observation)
    except Exception as error:  # noqa: BLE001 the measurement is made and must not be lost
        diagnosis = diagnose(observation)
        reason = str(error) or type(error).__name__
        why = f"cannot tell how to repair the source, because scanning it failed: {reason}"
        return replace(diagnosis, unknowns=(*diagnosis.unknowns, why))
    return diagnose(observation, scan)


def observe(
    options: ProfileOptions,
    run: store.Run,
    stage: str,
    on_stage: OnStage,
    ceiling: bool = False,
    resized: tuple[int, ...] = (),
) -> tuple[Observation, CommandExit]:
    """Run the command once and return what was seen; `resized` is as in Session."""
    folder = run.folder / stage
    session = replace(_session(options, folder, ceiling), resized=resized)
    session_file = store.keep_session(folder, session)
    before = CoreSeconds.now()
    ending, watch = supervise(
        options.command,
        session_file,
        session,
        on_progress=lambda progress, elapsed: on_stage(stage, progress, elapsed),
        quiet=ceiling or options.quiet,
    )
    parts = read_parts(folder)
    if not parts or not parts[0].counts.optimizer_steps:
        raise _nothing_seen(options, ending)
    observation = replace(
        join(parts, folder),
        command=options.command,
        directory=str(Path.cwd()),
        ended=_ended(ending, all(part.complete for part in parts if part.counts.optimizer_steps)),
        exit_code=ending.exit_code,
        processes=watch.processes(),
        gpus=watch.gpus(),
    )
    more = {Caution.STOP_IGNORED: ending.stop_ignored, Caution.BUSY_MACHINE: compete(before, CoreSeconds.now())}
    names = tuple(caution.name for caution, holds in more.items() if holds)
    return replace(observation, cautions=(*observation.cautions, *names)), ending


def _session(options: ProfileOptions, folder: Path, ceiling: bool) -> Session:
    return Session(
        schema=SCHEMA,
        folder=str(folder.resolve()),
        agent=AGENT,
        steps=options.steps,
        warmup=options.warmup,
        max_seconds=options.max_seconds,
        full=options.full,
        ceiling=ceiling,
        trace=options.trace and not ceiling,
        started=time.time(),
        ears=ears(),
        early=options.early,
    )


def _ceiling(options: ProfileOptions, observation: Observation, run: store.Run, on_stage: OnStage) -> Ceiling:
    reason = _why_no_ceiling(options, observation)
    if reason is not None:
        return Ceiling(samples_per_second=None, step_ms=(), note=reason)
    try:
        seen, _ = observe(replace(options, trace=False), run, CEILING, on_stage, ceiling=True)
    except HotlapError as error:
        return Ceiling(samples_per_second=None, step_ms=(), note=f"the second run made no training step: {error}")
    ceiling = Ceiling(samples_per_second=seen.samples_per_second, step_ms=seen.step_ms, note=None)
    if Step(replace(observation, ceiling=ceiling)).explains_ceiling():
        return ceiling
    return Ceiling(samples_per_second=None, step_ms=(), note=UNEQUAL)


def _why_no_ceiling(options: ProfileOptions, observation: Observation) -> str | None:
    if not options.ceiling:
        return "it was not requested"
    if options.full:
        return "--full lets the command run to its end, so there is no second run"
    if not any(loader.role == "train" for loader in observation.loaders):
        return "the program feeds its steps without a DataLoader"
    return None


def _ended(ending: CommandExit, complete: bool) -> str:
    if ending.interrupted:
        return "interrupted"
    if ending.timed_out:
        return "time limit"
    if ending.exit_code != 0:
        return "program failed"
    return "window complete" if complete else "program ended"


def _exit_code(ending: CommandExit) -> int:
    if ending.timed_out or ending.stop_ignored:
        return 0  # its exit code is that of hotlap's signal
    return ending.exit_code


def _nothing_seen(options: ProfileOptions, ending: CommandExit) -> HotlapError:
    """Return the error that says why no training step was observed."""
    error = _why_nothing(options, ending)
    error.died_by = ending.died_by
    return error


def _why_nothing(options: ProfileOptions, ending: CommandExit) -> HotlapError:
    command = " ".join(options.command)
    if ending.problem is not None:
        return TorchUnusable(ending.problem)
    if ending.interrupted:
        error = HotlapError(f"interrupted before a training step was measured; {_saw(ending)}")
        error.exit_code = INTERRUPTED if ending.died_by is not None else ending.exit_code or INTERRUPTED
        return error
    if os.environ.get("HOTLAP") == "off":
        return NotPython(f"HOTLAP=off is set, which disables hotlap; type: unset HOTLAP; hotlap profile {command}")
    if not ending.hellos:
        return NotPython(
            f"found no Python 3.10 or newer to observe in: {command}; give the training command itself, such as: "
            "hotlap profile python train.py (without -I, -E or -S, which disable hotlap)"
        )
    if ending.timed_out:
        return NeverStepped(
            f"no training step within {options.max_seconds:g} s; {_saw(ending)}; wait longer with --max-seconds "
            f"{2 * options.max_seconds:g}"
        )
    if ending.progress is not None and ending.progress.steps:
        unsaved = RunFolderUnwritable(
            f"{ending.progress.steps} or more training steps were seen but could not be saved (exit code "
            f"{ending.exit_code}); is the disk full, or was the process killed? choose another place: --run-dir DIR"
        )
        unsaved.exit_code = _exit_code(ending) or RunFolderUnwritable.exit_code
        return unsaved
    if all(hello.endswith("False") for hello in ending.hellos):
        interpreter = ending.hellos[0].split("\t")[0]
        return TorchUnusable(
            f"torch is not installed in {interpreter}; install it there: {interpreter} -m pip install torch"
        )
    error = NoStep(
        f"the command ended (exit code {ending.exit_code}) before its first training step; {_saw(ending)}; "
        f"does it train without hotlap? try: {command}"
    )
    error.exit_code = ending.exit_code or NoStep.exit_code
    return error


def _saw(ending: CommandExit) -> str:
    seen = ending.progress
    if seen is None:
        return "torch was never imported"
    return (
        f"seen: {seen.loaders} DataLoader(s) made, {seen.batches} batch(es) fetched, "
        f"{seen.backwards} backward call(s), {seen.optimizers} optimizer(s) made, {seen.steps} optimizer step(s)"
    )
