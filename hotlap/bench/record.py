"""The records of a bench: one JSON file, rewritten after every run. Times are in seconds, memory in MiB."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hotlap.errors import RecordUnreadable, RunFolderUnwritable, RunNotFound
from hotlap.judge.ratio import Ratio
from hotlap.records import private
from hotlap.records.codec import from_json, to_json
from hotlap.records.observation import Machine

BENCHMARK = "bench"
TRAINED, FAILED, UNREADABLE, TIME_LIMIT = "trained", "failed", "unreadable", "time limit"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line that an arm printed, and when it arrived, in seconds since the start of the process."""

    at: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One training in a process of its own."""

    workload: str
    arm: str
    seed: int
    started: str  # ISO 8601, UTC
    command: str  # with DATA and OUT in place of this machine's folders
    ended: str  # TRAINED, FAILED, UNREADABLE or TIME_LIMIT
    why: str | None  # what broke, in one line
    exit_code: int
    seconds: float
    lines: tuple[Line, ...]
    errors: tuple[str, ...]  # the last lines on stderr, of a run that broke
    peak_host_mb: float | None
    peak_device_mb: float | None
    said: tuple[str, ...] = ()  # hotlap's own lines on stderr: what the arm `run` applied and what not

    @property
    def key(self) -> tuple[str, str, int]:
        return self.workload, self.arm, self.seed


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A workload as it was measured."""

    name: str
    higher_is_better: bool
    source: str  # SHA-256 of its scripts and the shared ones, shortened


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What to measure."""

    workloads: tuple[str, ...]
    arms: tuple[str, ...]
    size: str
    device: str
    seeds: int
    epochs: int | None  # None: the number in the workload's recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The runs of one arm on one workload, summarised."""

    workload: str
    arm: str
    trained: int  # runs that ended well, out of `runs`
    runs: int
    broken: tuple[str, ...]  # why each of the others broke
    settings: str | None  # what a framework chose
    samples_per_second: float | None
    single_epoch: bool  # a run had one epoch only, which includes warm-up
    ratio: Ratio | None  # to naive
    metric: str | None
    target: float | None
    qualities: tuple[float, ...]  # final quality, one per seed
    reached: int  # runs whose final quality met the target
    seconds_to_target: tuple[float, ...]  # of the runs that met the target in any epoch
    warmup_seconds: float | None
    peak_host_mb: float | None
    peak_device_mb: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    schema: int
    benchmark: str
    date: str
    command: str
    machine: Machine
    versions: Mapping[str, str]
    environment: Mapping[str, str]  # variables that affect the speed of torch
    choice: Choice
    tasks: tuple[Task, ...]
    host_memory: str  # "PSS", which counts shared pages once, or "RSS"
    runs: tuple[Run, ...]
    summary: tuple[Row, ...]


def save(bench: Bench, path: Path, kept_by_us: bool = False) -> None:
    """Replace the file atomically: a crash loses at most the last finished run.

    With `kept_by_us` the file is in the state folder and private; a file that the user named follows the umask.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if kept_by_us:
            private.write_text(draft, to_json(bench))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(to_json(bench), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise RunFolderUnwritable(
            f"cannot write {path} ({error.strerror or error}); choose another place: --out FILE.json"
        ) from error


def load(path: Path) -> Bench:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RunNotFound(f"{path} does not exist; start the bench without --resume") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecordUnreadable(f"{path} cannot be read ({error}); start the bench without --resume") from error
    bench = from_json(Bench, text, str(path))
    if bench.benchmark != BENCHMARK:
        raise RecordUnreadable(f"{path} is a result of {bench.benchmark!r}, not of hotlap bench")
    return bench
