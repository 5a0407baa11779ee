"""Runs the unmodified command on this machine, in a fresh process: measured, limited, and with writes diverted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from hotlap.errors import RunFolderUnwritable
from hotlap.patch.entry import DECISIONS
from hotlap.plan.choose import at_start, variables
from hotlap.process import tree
from hotlap.process.launch import environment, start_apart
from hotlap.records import private
from hotlap.records.codec import SCHEMA, from_json, to_json
from hotlap.records.decisions import Decisions
from hotlap.records.plan import Outcome, Outcomes
from hotlap.records.session import Session
from hotlap.records.trial import EndReason, MetricValue, Sample
from hotlap.records.tune_record import Metric, Screening
from hotlap.trial.blocks import blocks, warmup_steps
from hotlap.trial.endings import Process, how_it_ended
from hotlap.trial.keeper import Keeper
from hotlap.trial.order import ORDER, SCRATCH, Order, ProcessReport
from hotlap.trial.runner import Spec
from hotlap.trial.trial_process import Limits, OnSteps, TrialProcess

AGENT, EARLY = "hotlap.trial.agent:start", "hotlap.trial.early_start:enter"
NO_SPACE = "No space left on device"
LEAST_DISK = 1 << 20  # bytes


class LocalRunner:
    def __init__(
        self,
        command: tuple[str, ...],
        folder: Path,
        samples_a_step: float,
        metric: Metric | None = None,
        limits: Limits | None = None,
        on_steps: OnSteps = lambda spec, steps: None,
        keeper: Keeper | None = None,
    ) -> None:
        """Put working files into `folder`, one folder per process, removed once the process is over.

        `keeper` restores what is written past the diversion.
        """
        self._command, self._folder, self._samples = command, folder, samples_a_step
        self._metric, self._limits, self._on_steps = metric, limits or Limits(), on_steps
        self._keeper = keeper
        self.hardware: str | None = None
        self.torch: str | None = None

    def screen(self, spec: Spec) -> Screening | None:
        folder, began = self._folder_of(spec), time.time()
        found: list[Screening] = []

        def look() -> None:
            found.append(
                Screening(decisions=_decisions(folder), outcomes=_outcomes(folder), seconds=time.time() - began)
            )

        sample = self.run(spec, look)
        return found[0] if sample.ended == EndReason.MEASURED else replace(found[0], decisions=None)

    def run(self, spec: Spec, before_cleanup: Callable[[], None] = lambda: None) -> Sample:
        folder = self._prepare(spec)
        if self._keeper is not None:
            self._keeper.process_begins()
        try:
            with _ending_on_signals():
                sample = self._run(spec, folder)
                before_cleanup()
                return sample
        finally:
            try:
                if self._keeper is not None:
                    self._keeper.process_ended(folder, folder / SCRATCH)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _prepare(self, spec: Spec) -> Path:
        folder = self._folder_of(spec)
        if folder.exists():  # in flight when an earlier hotlap was killed
            tree.end_leftover(folder)
            shutil.rmtree(folder, ignore_errors=True)
        metric = self._metric
        by_call = metric is not None and metric.pattern is None and metric.tag is None
        order = Order(
            schema=SCHEMA,
            scratch=str(folder / SCRATCH),
            steps=spec.steps,
            seed_shift=spec.seed_shift,
            nudge=spec.nudge,
            readings=spec.readings,
            metric=metric.name if metric is not None and by_call else None,
            tag=metric.tag if metric is not None else None,
            device_mb=self._limits.device_mb,
            screens=spec.screens,
        )
        try:
            private.make_folder(folder)
            private.write_text(folder / f"{ORDER}.json", to_json(order))
        except OSError as error:
            raise RunFolderUnwritable(
                f"cannot write {folder} ({error.strerror}); make room, or choose another place: --run-dir DIR"
            ) from error
        return folder

    def _folder_of(self, spec: Spec) -> Path:
        return (self._folder / f"process-{spec.number:04d}").resolve()

    def _run(self, spec: Spec, folder: Path) -> Sample:
        session = self._session(spec, folder)
        path = folder / "session.json"
        private.write_text(path, to_json(session))
        child = self._start(spec, path)
        watched = TrialProcess(child, spec, folder, self._limits, self._metric, self._on_steps, session.started)
        watched.keeper = self._keeper
        try:
            with suppress(OSError):  # a full disk: the process still ends with this one
                tree.remember(child.pid, folder)
            process = watched.ended()
        finally:
            watched.end()
        seconds = time.time() - session.started
        if process.report is not None:
            self.hardware, self.torch = process.report.hardware, process.report.torch
        elif (full := _full_disk(process, folder)) is not None:
            raise RunFolderUnwritable(f"{full}; make room, or choose another place: --run-dir DIR")
        sample = self._sample(spec, process, _outcomes(folder), watched.readings(), seconds)
        return replace(sample, traces=watched.traces(process))

    def _session(self, spec: Spec, folder: Path) -> Session:
        return Session(
            schema=SCHEMA,
            folder=str(folder),
            agent=AGENT,
            early=EARLY,
            steps=spec.steps,
            warmup=None,
            max_seconds=spec.seconds,
            full=False,
            ceiling=False,
            trace=False,
            started=time.time(),
            choices=spec.choices,
            decides=spec.screens is not None,
            quiet=True,
        )

    def _start(self, spec: Spec, session: Path) -> subprocess.Popen[bytes]:
        extra = variables(spec.choices if spec.screens is None else at_start(spec.choices), os.environ)
        if self._metric is not None and self._metric.pattern is not None:
            extra["PYTHONUNBUFFERED"] = "1"  # a buffered line would be read at a later step
        if "PYTHONHASHSEED" not in os.environ:
            extra["PYTHONHASHSEED"] = "0"  # the order of a set must not differ between processes
        return start_apart(self._command, environment(session, os.environ, extra))

    def _sample(
        self,
        spec: Spec,
        process: Process,
        outcomes: tuple[Outcome, ...],
        readings: tuple[MetricValue, ...],
        seconds: float,
    ) -> Sample:
        ended, why = how_it_ended(process, spec.least)
        report = process.report
        sample = Sample(
            number=spec.number,
            arm=spec.arm,
            choices=spec.choices,
            seed_shift=spec.seed_shift,
            ended=ended,
            why=why,
            warmup_steps=0,
            warmup_seconds=0.0,
            startup_seconds=0.0,
            blocks=(),
            losses=(),
            readings=readings,
            outcomes=outcomes,
            host_mb=None,
            device_mb=None,
            seconds=seconds,
            nudge=spec.nudge,
        )
        return sample if report is None or not report.ends else self._with_steps(sample, report, spec)

    def _with_steps(self, sample: Sample, report: ProcessReport, spec: Spec) -> Sample:
        ends = report.ends[: spec.steps] if not spec.readings else report.ends
        warmup = warmup_steps(report.began, ends)
        marks = [(mark.steps, mark.seconds) for mark in report.marks if mark.steps <= len(ends)]
        if len(marks) < 2:
            marks = [(index + 1, end) for index, end in enumerate(ends)]
        return replace(
            sample,
            warmup_steps=warmup,
            warmup_seconds=ends[max(0, warmup - 1)] - report.began,
            startup_seconds=report.began,
            blocks=blocks(marks, warmup, self._samples),
            losses=report.losses[: len(ends)],
            readings=(*sample.readings, *report.readings),
            host_mb=report.host_mb,
            device_mb=report.device_mb,
        )


def _full_disk(process: Process, folder: Path) -> str | None:
    """Return why the disk is full, if it is; a full disk says nothing about what was tried."""
    if any(NO_SPACE in line for line in process.last_words) or shutil.disk_usage(folder).free < LEAST_DISK:
        return f"the disk of {folder.parent} is full"
    return None


def _outcomes(folder: Path) -> tuple[Outcome, ...]:
    for path in sorted(folder.glob("outcomes-*.json")):
        return from_json(Outcomes, path.read_text(encoding="utf-8"), str(path)).outcomes
    return ()


def _decisions(folder: Path) -> Decisions | None:
    """Return the decisions of the process that got furthest."""
    reported = [
        from_json(Decisions, path.read_text(encoding="utf-8"), str(path)) for path in folder.glob(f"{DECISIONS}-*")
    ]
    found = [decisions for decisions in reported if not decisions.at_once]
    return max(found, key=lambda decisions: (decisions.is_main, decisions.steps), default=None)


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end a tune as Ctrl-C does, so that the process in flight ends too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    names = (signal.SIGTERM, signal.SIGHUP)
    try:
        before = {name: signal.signal(name, interrupt) for name in names}
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
