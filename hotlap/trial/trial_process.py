"""One process of a trial while it runs: what it prints, how far it got, and the limits that end it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hotlap.machine import memory_nearly_gone
from hotlap.patch.entry import PROBLEM
from hotlap.process import tree
from hotlap.process.attendant import Attendant
from hotlap.process.output import Pattern, outputs
from hotlap.records import private
from hotlap.records.codec import from_json
from hotlap.records.progress import DONE, Progress, read_progress
from hotlap.records.traces import Traces
from hotlap.records.trial import EndReason, MetricValue
from hotlap.records.tune_record import Metric
from hotlap.trial.endings import KILLED, Process
from hotlap.trial.keeper import Keeper
from hotlap.trial.order import ENOUGH, LEFT, REPORT, SCRATCH, TEMPORARY, ProcessReport
from hotlap.trial.runner import Spec
from hotlap.trial.saved_files import saved_files
from hotlap.trial.temporary_files import left_behind

MEMORY_SECONDS = 1.0  # between readings of memory
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


class TrialProcess(Attendant):
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


def _report(folder: Path) -> ProcessReport | None:
    """Return the report of the first rank; of independent trainers, the one with most steps."""
    reports = [
        from_json(ProcessReport, path.read_text(encoding="utf-8"), str(path))
        for path in folder.glob(f"{REPORT}-*.json")
    ]
    return min(reports, key=lambda report: (report.rank, -len(report.ends)), default=None)


def _problem(folder: Path) -> str | None:
    return next((path.read_text(encoding="utf-8").strip() for path in folder.glob(f"{PROBLEM}-*.txt")), None)
