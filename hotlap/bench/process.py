"""One run of one arm: a fresh process, followed line by line until it ends."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from hotlap.bench import contract
from hotlap.bench.memory import Gpus, Peaks
from hotlap.bench.order import Key
from hotlap.bench.record import FAILED, TIME_LIMIT, TRAINED, UNREADABLE, Line, Run
from hotlap.bench.workloads import RUN, command
from hotlap.process import launch
from hotlap.process.attendant import Attendant
from hotlap.process.output import Listener

ERROR_LINES = 20
LONGEST_LINE = 2000
OUR_LINES = "hotlap: "
LOOK_EVERY = 0.25  # seconds: the parent shares the cores with the arm
OnLine = Callable[[int, float], None]  # epochs done, seconds since the start


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """The arguments shared by all runs of a bench."""

    place: Path  # of the workloads
    size: str
    device: str
    epochs: int | None
    max_seconds: float | None

    def arguments(self, seed: int, data: str, out: str) -> list[str]:
        words = ["--size", self.size, "--seed", str(seed), "--device", self.device, "--data", data, "--out", out]
        return words if self.epochs is None else [*words, "--epochs", str(self.epochs)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmExit:
    exit_code: int
    seconds: float
    lines: tuple[Line, ...]
    errors: tuple[str, ...]
    said: tuple[str, ...]
    timed_out: bool
    peak_host_mb: float | None
    peak_device_mb: float | None


def run(arm: Arm, key: Key, data: Path, on_line: OnLine) -> Run:
    workload, name, seed = key
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory(prefix="hotlap-bench-") as out:
        words = command(arm.place, workload, name, arm.arguments(seed, str(data), out), out)
        # hotlap run forwards SIGTERM to its command; SIGKILL would leave the command behind.
        end_signal = signal.SIGTERM if name == RUN else signal.SIGKILL
        ending = _follow(words, end_signal, arm.max_seconds, on_line)
    ended, why = _verdict(ending, arm)
    return Run(
        workload=workload,
        arm=name,
        seed=seed,
        started=started,
        command=_published(arm, key),
        ended=ended,
        why=why,
        exit_code=ending.exit_code,
        seconds=ending.seconds,
        lines=ending.lines,
        errors=() if ended == TRAINED else tuple(_relative(ending.errors, arm.place)),
        said=tuple(_relative(ending.said, arm.place)),
        peak_host_mb=ending.peak_host_mb,
        peak_device_mb=ending.peak_device_mb,
    )


def _published(arm: Arm, key: Key) -> str:
    workload, name, seed = key
    words = command(arm.place, workload, name, arm.arguments(seed, "DATA", "OUT"), "OUT")
    return " ".join(_relative(["python" if word == sys.executable else word for word in words], arm.place))


def _follow(words: list[str], end_signal: signal.Signals, max_seconds: float | None, on_line: OnLine) -> ArmExit:
    gpus = Gpus()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        began = time.perf_counter()
        environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
        attendant = Attendant(launch.start_apart(words, environ, errors, end_signal), poll=LOOK_EVERY)
        lines: list[Line] = []

        def append(text: str) -> None:
            lines.append(Line(at=time.perf_counter() - began, text=text.rstrip()[:LONGEST_LINE]))

        def is_over_time() -> bool:
            elapsed = time.perf_counter() - began
            on_line(contract.last_epoch(lines), elapsed)
            return max_seconds is not None and elapsed >= max_seconds

        assert attendant.child.stdout is not None
        listener = Listener(attendant.child.stdout, append)
        try:
            with Peaks(attendant.child.pid, gpus) as peaks:
                timed_out = attendant.wait(is_over_time)
                seconds = time.perf_counter() - began
        finally:
            attendant.end()
            listener.wait(5.0)
        tail, said = _tail(errors), _our_lines(errors)
    return ArmExit(
        exit_code=attendant.child.returncode,
        seconds=max([seconds, *(line.at for line in lines[-1:])]),  # the last line may be read just after the end
        lines=tuple(lines),
        errors=tail,
        said=said,
        timed_out=timed_out,
        peak_host_mb=peaks.host_mb,
        peak_device_mb=peaks.device_mb,
    )


def _tail(errors: IO[str]) -> tuple[str, ...]:
    """Return the last lines on stderr that the command itself printed."""
    errors.seek(0)
    lines = [line.rstrip()[:LONGEST_LINE] for line in errors if line.strip() and not line.startswith(OUR_LINES)]
    return tuple(lines[-ERROR_LINES:])


def _our_lines(errors: IO[str]) -> tuple[str, ...]:
    errors.seek(0)
    return tuple(line.rstrip()[:LONGEST_LINE] for line in errors if line.startswith(OUR_LINES))


def _verdict(ending: ArmExit, arm: Arm) -> tuple[str, str | None]:
    if ending.timed_out:
        return TIME_LIMIT, f"not finished after {(arm.max_seconds or 0.0) / 60:.3g} min, the limit set by --max-minutes"
    if ending.exit_code != 0:
        return FAILED, f"{_death(ending)}{': ' + ending.errors[-1] if ending.errors else ''}"
    try:
        contract.read(ending.lines)
    except contract.Unreadable as error:
        return UNREADABLE, f"exit code 0, but {error}"
    return TRAINED, None


def _death(ending: ArmExit) -> str:
    if ending.exit_code >= 0:
        return f"exit code {ending.exit_code}"
    name = signal.Signals(-ending.exit_code).name
    return f"killed by {name}" + (", perhaps out of memory" if name == "SIGKILL" else "")


def _relative(lines: list[str] | tuple[str, ...], place: Path) -> list[str]:
    """Strip the folders of this machine, since results are published; an arm imports from the same sys.path."""
    folders = {f"{Path(path)}{os.sep}" for path in (str(place), *sys.path) if Path(path).is_absolute()} - {os.sep * 2}
    stripped = list(lines)
    for folder in sorted(folders, key=len, reverse=True):
        stripped = [line.replace(folder, "") for line in stripped]
    return [line.replace(str(Path.home()), "~") for line in stripped]
