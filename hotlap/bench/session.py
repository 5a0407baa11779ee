"""A whole bench: look around, make the data, run the arms interleaved, keep every run the moment it ends."""

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
    """What the user typed; None: not said."""

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
    """Those who show how far it is."""

    def making_data(self, workload: str, elapsed: float) -> None: ...
    def running(self, key: Key, runs: tuple[Run, ...], waiting: list[Key], epoch: int, elapsed: float) -> None: ...
    def ended(self, run: Run, runs: tuple[Run, ...], waiting: list[Key]) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    place: Path  # of the workloads
    out: Path
    kept_by_us: bool  # in the state folder, since no other was named
    bench: Bench
    max_seconds: float | None


def prepare(asked: BenchRequest) -> Session:
    """Everything that can be refused is refused here, before anything is made or run."""
    place = workloads.folder()
    out = _out(asked)
    before = record.load(out) if asked.resume else None
    choice = _choice(asked, place, before)
    require_packages(choice.arms)
    here, device = look(choice.device or None)
    choice = replace(choice, device=device)
    bench = _bench(choice, place, here)
    if before is not None:
        bench = _resumed(before, bench, out)
    needs = [data.needs(place, name, choice.size) for name in choice.workloads]
    data.require_room(needs, choice.size)
    kept_by_us = asked.out is None
    if kept_by_us:
        store.prepare(store.home(), FOLDER)
    record.save(bench, out, kept_by_us)
    return Session(
        place=place,
        out=out,
        kept_by_us=kept_by_us,
        bench=bench,
        max_seconds=None if asked.max_minutes is None else 60 * asked.max_minutes,
    )


def perform(session: Session, watcher: Watcher) -> Bench:
    choice, bench = session.bench.choice, session.bench
    done = {run.key for run in bench.runs if run.ended == TRAINED}  # what broke is tried again
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
        run = process.run(arm, key, folders[key[0]], _teller(watcher, key, bench.runs, waiting))
        bench = _with(bench, run)
        record.save(bench, session.out, session.kept_by_us)
        watcher.ended(run, bench.runs, waiting)
    return bench


def _teller(watcher: Watcher, key: Key, runs: tuple[Run, ...], waiting: list[Key]) -> Callable[[int, float], None]:
    return lambda epoch, elapsed: watcher.running(key, runs, waiting, epoch, elapsed)


def _make_data(session: Session, waiting: list[Key], watcher: Watcher) -> dict[str, Path]:
    needed = dict.fromkeys(workload for workload, _, _ in waiting)
    size = session.bench.choice.size
    return {name: data.make(session.place, name, size, watcher.making_data) for name in needed}


def _with(bench: Bench, run: Run) -> Bench:
    runs = (*(kept for kept in bench.runs if kept.key != run.key), run)
    return replace(bench, runs=runs, summary=summarize(bench.choice, bench.tasks, runs))


def _out(asked: BenchRequest) -> Path:
    if asked.out is not None:
        if asked.out.exists() and not asked.resume:
            raise RunFolderUnwritable(f"{asked.out} is there already; go on with it: --resume, or choose another --out")
        return asked.out
    folder = store.home() / FOLDER
    if not asked.resume:
        return folder / f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}.json"
    found = max(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, default=None)
    if found is None:
        raise RunNotFound(f"no bench in {folder} to go on with; start one without --resume")
    return found


def _choice(asked: BenchRequest, place: Path, before: Bench | None) -> Choice:
    """What was typed, filled up from the bench to go on with, filled up with defaults. Device "" is found later."""
    known = workloads.names(place)
    old = before.choice if before else None
    if old and asked.size not in (None, old.size):
        raise ResumeRefused(f"that bench is of size {old.size}, not {asked.size}; leave out --size or --resume")
    if old and asked.device not in (None, old.device):
        raise ResumeRefused(f"that bench ran on {old.device}, not {asked.device}; leave out --device or --resume")
    if old and asked.epochs not in (None, old.epochs):
        raise ResumeRefused(f"that bench has --epochs {old.epochs}, not {asked.epochs}; leave out --epochs or --resume")
    asked_workloads = (old.workloads if old else ()) + (asked.workloads or (() if old else known))
    asked_arms = (old.arms if old else ()) + (asked.arms or (() if old else workloads.ARMS))
    return Choice(
        workloads=workloads.chosen("workload", asked_workloads, known),
        arms=workloads.chosen("arm", asked_arms, workloads.ARMS),
        size=old.size if old else asked.size or SIZE,
        device=old.device if old else asked.device or "",
        seeds=max(asked.seeds or (0 if old else SEEDS), old.seeds if old else 0),
        epochs=old.epochs if old else asked.epochs,
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
    """Threads, devices and allocators; folders of this machine are nobody's business."""
    found = {name: value for name, value in variables.items() if name.startswith(SPEED) and os.sep not in value}
    return dict(sorted(found.items()))


def command_line(choice: Choice) -> str:
    """What to type to measure the same."""
    words = ["hotlap bench", *choice.workloads, "--arms", ",".join(choice.arms), "--size", choice.size]
    words += ["--seeds", str(choice.seeds), "--device", choice.device]
    return " ".join(words if choice.epochs is None else [*words, "--epochs", str(choice.epochs)])


def _resumed(before: Bench, now: Bench, out: Path) -> Bench:
    """`before` with what is asked for now, refused where its runs could not be compared with new ones."""
    for what, old, new in _conditions(before, now):
        if old != new:
            raise ResumeRefused(
                f"{out} was measured with {what} {old}, here it is {new}; start a new bench without --resume"
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
