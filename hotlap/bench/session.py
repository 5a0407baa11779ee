"""A whole bench: inspect the machine, generate the data, run the arms interleaved, save every run as it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from hotlap import store
from hotlap.bench import data, process, record, workloads
from hotlap.bench.memory import HOST_MEMORY
from hotlap.bench.order import Key, schedule
from hotlap.bench.record import TRAINED, Bench, Choice, Run
from hotlap.bench.summary import summarize
from hotlap.bench.surroundings import Surroundings, look, require_packages
from hotlap.errors import ResumeRefused, RunFolderUnwritable, RunNotFound
from hotlap.records.codec import SCHEMA

SEEDS, SIZE = 3, "small"
FOLDER = "bench"
SIZES = ("tiny", "small", "report")
SPEED = ("CUDA_", "CUDNN_", "GOMP_", "KMP_", "MKL_", "NVIDIA_TF32", "OMP_", "OPENBLAS_", "PYTORCH_", "TORCH")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRequest:
    """The options the user typed; None where an option was not given."""

    workloads: tuple[str, ...] | None
    arms: tuple[str, ...] | None
    size: str | None
    device: str | None
    seeds: int | None
    epochs: int | None
    out: Path | None
    resume: bool
    max_minutes: float | None


class Watcher(Protocol):
    """Shows the progress of a bench."""

    def making_data(self, workload: str, elapsed: float) -> None: ...
    def running(self, key: Key, runs: tuple[Run, ...], waiting: list[Key], epoch: int, elapsed: float) -> None: ...
    def ended(self, run: Run, runs: tuple[Run, ...], waiting: list[Key]) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    place: Path  # of the workloads
    out: Path
    kept_by_us: bool  # `out` is in the state folder, since the user named no file
    bench: Bench
    max_seconds: float | None


def prepare(request: BenchRequest) -> Session:
    """Check everything that can be refused before any data is generated or any arm is run."""
    place = workloads.folder()
    out = _out(request)
    before = record.load(out) if request.resume else None
    choice = _choice(request, place, before)
    require_packages(choice.arms)
    here, device = look(choice.device or None)
    choice = replace(choice, device=device)
    bench = _bench(choice, place, here)
    if before is not None:
        bench = _resumed(before, bench, out)
    needs = [data.needs(place, name, choice.size) for name in choice.workloads]
    data.require_room(needs, choice.size)
    kept_by_us = request.out is None
    if kept_by_us:
        store.prepare(store.home(), FOLDER)
    record.save(bench, out, kept_by_us)
    return Session(
        place=place,
        out=out,
        kept_by_us=kept_by_us,
        bench=bench,
        max_seconds=None if request.max_minutes is None else 60 * request.max_minutes,
    )


def perform(session: Session, watcher: Watcher) -> Bench:
    choice, bench = session.bench.choice, session.bench
    done = {run.key for run in bench.runs if run.ended == TRAINED}  # broken runs are tried again
    waiting = [key for key in schedule(choice) if key not in done]
    folders = _make_data(session, waiting, watcher)
    arm = process.Arm(
        place=session.place,
        size=choice.size,
        device=choice.device,
        epochs=choice.epochs,
        max_seconds=session.max_seconds,
    )
    while waiting:
        key = waiting.pop(0)
        run = process.run(arm, key, folders[key[0]], _on_line(watcher, key, bench.runs, waiting))
        bench = _with(bench, run)
        record.save(bench, session.out, session.kept_by_us)
        watcher.ended(run, bench.runs, waiting)
    return bench


def _on_line(watcher: Watcher, key: Key, runs: tuple[Run, ...], waiting: list[Key]) -> Callable[[int, float], None]:
    return lambda epoch, elapsed: watcher.running(key, runs, waiting, epoch, elapsed)


def _make_data(session: Session, waiting: list[Key], watcher: Watcher) -> dict[str, Path]:
    needed = dict.fromkeys(workload for workload, _, _ in waiting)
    size = session.bench.choice.size
    return {name: data.make(session.place, name, size, watcher.making_data) for name in needed}


def _with(bench: Bench, run: Run) -> Bench:
    runs = (*(earlier for earlier in bench.runs if earlier.key != run.key), run)
    return replace(bench, runs=runs, summary=summarize(bench.choice, bench.tasks, runs))


def _out(request: BenchRequest) -> Path:
    if request.out is not None:
        if request.out.exists() and not request.resume:
            raise RunFolderUnwritable(
                f"{request.out} already exists; continue it with --resume, or choose another --out"
            )
        return request.out
    folder = store.home() / FOLDER
    if not request.resume:
        return folder / f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}.json"
    found = max(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, default=None)
    if found is None:
        raise RunNotFound(f"there is no bench in {folder} to resume; start one without --resume")
    return found


def _choice(request: BenchRequest, place: Path, before: Bench | None) -> Choice:
    """Merge the typed options with those of the bench to resume and the defaults; a device "" is detected later."""
    known = workloads.names(place)
    old = before.choice if before else None
    if old and request.size not in (None, old.size):
        raise ResumeRefused(f"that bench is of size {old.size}, not {request.size}; leave out --size or --resume")
    if old and request.device not in (None, old.device):
        raise ResumeRefused(f"that bench ran on {old.device}, not {request.device}; leave out --device or --resume")
    if old and request.epochs not in (None, old.epochs):
        raise ResumeRefused(
            f"that bench has --epochs {old.epochs}, not {request.epochs}; leave out --epochs or --resume"
        )
    requested_workloads = (old.workloads if old else ()) + (request.workloads or (() if old else known))
    requested_arms = (old.arms if old else ()) + (request.arms or (() if old else workloads.ARMS))
    return Choice(
        workloads=workloads.chosen("workload", requested_workloads, known),
        arms=workloads.chosen("arm", requested_arms, workloads.ARMS),
        size=old.size if old else request.size or SIZE,
        device=old.device if old else request.device or "",
        seeds=max(request.seeds or (0 if old else SEEDS), old.seeds if old else 0),
        epochs=old.epochs if old else request.epochs,
    )


def _bench(choice: Choice, place: Path, here: Surroundings) -> Bench:
    return Bench(
        schema=SCHEMA,
        benchmark=record.BENCHMARK,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=command_line(choice),
        machine=here.machine,
        versions=here.versions,
        environment=speed_variables(os.environ),
        choice=choice,
        tasks=tuple(workloads.task(place, name) for name in choice.workloads),
        host_memory=HOST_MEMORY,
        runs=(),
        summary=(),
    )


def speed_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for threads, devices and allocators, without any that contain paths of this machine."""
    found = {name: value for name, value in variables.items() if name.startswith(SPEED) and os.sep not in value}
    return dict(sorted(found.items()))


def command_line(choice: Choice) -> str:
    """Return the command that repeats this bench."""
    words = ["hotlap bench", *choice.workloads, "--arms", ",".join(choice.arms), "--size", choice.size]
    words += ["--seeds", str(choice.seeds), "--device", choice.device]
    return " ".join(words if choice.epochs is None else [*words, "--epochs", str(choice.epochs)])


def _resumed(before: Bench, now: Bench, out: Path) -> Bench:
    """Extend `before` to the current request; refuse if its runs could not be compared with new ones."""
    for what, old, new in _conditions(before, now):
        if old != new:
            raise ResumeRefused(
                f"{out} was measured with {what} {old}, but here it is {new}; start a new bench without --resume"
            )
    return replace(now, date=before.date, runs=before.runs, summary=summarize(now.choice, now.tasks, before.runs))


def _conditions(before: Bench, now: Bench) -> list[tuple[str, object, object]]:
    pairs = [
        (name, getattr(before.machine, name), getattr(now.machine, name))
        for name in ("cpu", "cores", "system", "gpu", "gpus", "cuda")
    ]
    pairs += [("size", before.choice.size, now.choice.size), ("device", before.choice.device, now.choice.device)]
    for old_values, new_values in ((before.versions, now.versions), (before.environment, now.environment)):
        names = sorted({*old_values, *new_values})
        pairs += [(name, old_values.get(name, "none"), new_values.get(name, "none")) for name in names]
    old = {task.name: task.source for task in before.tasks}
    pairs += [(f"scripts of {task.name}", old[task.name], task.source) for task in now.tasks if task.name in old]
    return pairs
