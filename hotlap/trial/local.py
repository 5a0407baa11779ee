"""Runs the unmodified command on this machine, in a fresh process: measured, limited, and with writes diverted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from hotlap.errors import RunFolderUnwritable
from hotlap.machine import memory_nearly_gone
from hotlap.patch.entry import DECISIONS, PROBLEM
from hotlap.plan.choose import at_start, variables
from hotlap.process import tree
from hotlap.process.attendant import Attendant
from hotlap.process.launch import environment, start_apart
from hotlap.process.output import Pattern, outputs
from hotlap.records import private
from hotlap.records.codec import SCHEMA, from_json, to_json
from hotlap.records.decisions import Decisions
from hotlap.records.plan import Outcome, Outcomes
from hotlap.records.progress import DONE, Progress, read_progress
from hotlap.records.session import Session
from hotlap.records.traces import Traces
from hotlap.records.trial import EndReason, MetricValue, Sample
from hotlap.records.tune_record import Metric, Screening
from hotlap.trial.blocks import blocks, warmup_steps
from hotlap.trial.endings import KILLED, Process, how_it_ended
from hotlap.trial.keeper import Keeper
from hotlap.trial.order import ENOUGH, LEFT, ORDER, REPORT, SCRATCH, TEMPORARY, Order, ProcessReport
from hotlap.trial.runner import Spec
from hotlap.trial.saved_files import saved_files
from hotlap.trial.temporary_files import left_behind

AGENT, EARLY = "hotlap.trial.agent:start", "hotlap.trial.early_start:enter"
MEMORY_SECONDS = 1.0  # between readings of memory
NO_SPACE = "No space left on device"
LEAST_DISK = 1 << 20  # bytes
GRACE = 10.0  # seconds for the program to clean up once it was asked to end
CLOSING = 6.0  # seconds for the interpreter after that; its exit code is worth waiting for
POOLS = 2.0  # seconds if it has children left: compilers' pools take longer to end, a killed group ends at once

OnSteps = Callable[[Spec, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    idle: float = 180.0  # seconds without a step
    memory_mb: float | None = None  # of all processes together; None: until the machine's runs out
    device_mb: float | None = None  # of memory on each device; None: all there is
    grace: float = GRACE


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
        watched = _TrialProcess(child, spec, folder, self._limits, self._metric, self._on_steps, session.started)
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


class _TrialProcess(Attendant):
    """A process of a trial: what it prints, how far it got, and the limits that end it."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        spec: Spec,
        folder: Path,
        limits: Limits,
        metric: Metric | None,
        on_steps: OnSteps,
        started: float,
    ) -> None:
        super().__init__(child)
        self._spec, self._folder, self._limits = spec, folder, limits
        self._on_steps, self._started = on_steps, started
        self.keeper: Keeper | None = None
        self._tree_mb: float | None = None
        self._steps = 0
        self._since = time.monotonic()  # of the last step
        self._done_since: float | None = None
        self._left_since: float | None = None
        self._memory_read = 0.0
        self._pattern = None
        if metric is not None and metric.pattern is not None:
            self._pattern = Pattern(metric.name, metric.pattern, lambda: self._progress()[1])
        self._wants_end = spec.readings
        self._out, self._err = outputs(child, self._heard)

    def ended(self) -> Process:
        limits: list[tuple[EndReason, str]] = []

        def is_enough() -> bool:
            if self.keeper is not None:
                self.keeper.look_at([self.child.pid, *(member.pid for member in self.family)])
            limits.extend(filter(None, [self._passed_limit()]))
            return bool(limits)

        self.wait(is_enough)
        limit = limits[0] if limits else None
        for listener in (self._out, self._err):
            listener.wait(1.0)
        self._on_steps(self._spec, self._progress()[1])
        ended_by_us = None if limit is None or limit[0] is EndReason.MEASURED else limit
        return Process(
            report=_report(self._folder),
            exit_code=self.child.returncode,
            ended_by_us=ended_by_us,
            last_words=list(self._err.last) or list(self._out.last),
            problem=_problem(self._folder),
        )

    def traces(self, process: Process) -> Traces:
        saved, cut = saved_files(self._folder / SCRATCH)
        for name, listener in (("the standard output", self._out), ("the standard error", self._err)):
            if listener.cut:
                cut = (*cut, f"{listener.cut:,} lines of {name}")
        by_us = process.exit_code == KILLED
        return Traces(
            state=process.report.state if process.report is not None else None,
            saved=saved,
            printed=tuple(self._out.lines),
            complained=tuple(self._err.lines),
            exit_code=None if by_us else process.exit_code,
            tree_mb=self._tree_mb,
            cut=cut,
            temporary=left_behind(self._folder / TEMPORARY),
        )

    def readings(self) -> tuple[MetricValue, ...]:
        return tuple(self._pattern.readings) if self._pattern is not None else ()

    def _heard(self, line: str) -> None:
        if self._pattern is None:
            return
        self._pattern.read(line)
        if self._wants_end and len(self._pattern.readings) >= self._wants_end:
            with suppress(OSError):
                (self._folder / ENOUGH).touch(private.FILE)

    def _progress(self) -> tuple[bool, int]:
        """Return whether a process is done, and the steps of the one that got furthest."""
        known: list[Progress] = []
        for path in self._folder.glob("progress-*.bin"):
            with suppress(OSError):
                if (progress := read_progress(path)) is not None:
                    known.append(progress)
        return any(progress.state == DONE for progress in known), max((progress.steps for progress in known), default=0)

    def _passed_limit(self) -> tuple[EndReason, str] | None:
        """Return the limit that the process exceeded; MEASURED if it was done and did not end by itself."""
        now = time.monotonic()
        done, steps = self._progress()
        if steps != self._steps:
            self._steps, self._since = steps, now
            self._on_steps(self._spec, steps)
        if done:
            return (EndReason.MEASURED, "") if self._has_had_its_time(now) else None
        spent = time.time() - self._started
        if spent > self._spec.seconds:
            return EndReason.OVER_TIME, f"{self._spec.seconds:.0f} s passed, at step {steps} of {self._spec.steps}"
        if steps and now - self._since > self._limits.idle:
            return EndReason.HUNG, f"no step for {self._limits.idle:g} s after step {steps}"
        return self._passed_memory(now)

    def _has_had_its_time(self, now: float) -> bool:
        """Whether the process had enough time to end by itself after it was measured."""
        self._done_since = self._done_since or now
        if self._left_since is None and (self._folder / LEFT).exists():
            self._left_since = now
        since = now - self._left_since if self._left_since is not None else 0.0
        closed = since > CLOSING or (since > POOLS and len(tree.family(self.child.pid)) > 1)
        return closed or now - self._done_since > self._limits.grace

    def _passed_memory(self, now: float) -> tuple[EndReason, str] | None:
        if now - self._memory_read < MEMORY_SECONDS:
            return None
        self._memory_read = now
        self.family = tree.family(self.child.pid)
        training = tree.memory_mb(tree.without_compilers(self.family))
        self._tree_mb = max(training, self._tree_mb or 0.0)
        most = self._limits.memory_mb
        if most is not None and (used := tree.memory_mb(self.family)) > most:
            return EndReason.OVER_MEMORY, f"its processes use {used:.0f} MB, more than {most:.0f} MB"
        gone = memory_nearly_gone()
        return (EndReason.OVER_MEMORY, gone) if gone is not None else None


def _full_disk(process: Process, folder: Path) -> str | None:
    """Return why the disk is full, if it is; a full disk says nothing about what was tried."""
    if any(NO_SPACE in line for line in process.last_words) or shutil.disk_usage(folder).free < LEAST_DISK:
        return f"the disk of {folder.parent} is full"
    return None


def _report(folder: Path) -> ProcessReport | None:
    """Return the report of the first rank; of independent trainers, the one with most steps."""
    reports = [
        from_json(ProcessReport, path.read_text(encoding="utf-8"), str(path))
        for path in folder.glob(f"{REPORT}-*.json")
    ]
    return min(reports, key=lambda report: (report.rank, -len(report.ends)), default=None)


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


def _problem(folder: Path) -> str | None:
    return next((path.read_text(encoding="utf-8").strip() for path in folder.glob(f"{PROBLEM}-*.txt")), None)


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
