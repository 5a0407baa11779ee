"""Measures what the five reports claim, each change alone. `python benchmarks/claims.py --device cuda --out FILE`

naive.py of a workload and the same with one change (benchmarks/claims.toml) train a few epochs in fresh processes,
interleaved: naive and --share changes make a block that runs A B C, then C B A, with seeds 0, 1, … Every run is saved
the moment it ends; --resume goes on, tries again what broke, and takes in what --only adds; --minutes ends in time
where the machine is lent. docs/claims.md is made of the result by benchmarks/render_claims.py.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType

import claims_book
import claims_record
from claims_book import Book, BookWrong, Change
from claims_record import NAIVE, Claims, Taken

from hotlap.bench import data, process, surroundings, workloads
from hotlap.bench.memory import HOST_MEMORY
from hotlap.bench.order import Key
from hotlap.bench.record import TRAINED, Run
from hotlap.bench.session import SIZES, speed_variables
from hotlap.cli.bench import Progress
from hotlap.errors import INTERRUPTED, HotlapError
from hotlap.model.codec import SCHEMA

AT_START = Path(__file__).resolve().parent / "claims_process"  # of every process
Runner = Callable[[process.Arm, Key, Path, process.OnLine], Run]
MACHINE = ("cpu", "cores", "system", "gpu", "gpus", "cuda")  # what must be the same for runs to be compared


class Refused(ValueError):
    """What was asked for cannot be measured; the text says what to type instead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed(process.Arm):
    """naive.py in a copy of the workloads, with the change made."""

    more: tuple[str, ...]  # arguments

    def arguments(self, seed: int, data: str, out: str) -> list[str]:
        return [*process.Arm.arguments(self, seed, data, out), *self.more]


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    book: Book
    place: Path  # of the workloads
    out: Path
    minutes: float | None  # no run starts later
    max_seconds: float | None  # of one run


def blocks_of(changes: Sequence[Change], share: int) -> list[tuple[str, ...]]:
    """Changes of one workload, at most `share` beside one naive, and beside them those compared with one of them."""
    by_workload: dict[str, list[str]] = {}
    for change in changes:
        if change.against is None:
            by_workload.setdefault(change.workload, []).append(change.name)
    chunks = [names[first : first + share] for names in by_workload.values() for first in range(0, len(names), share)]
    later = [change for change in changes if change.against is not None]
    return [(*names, *(change.name for change in later if change.against in names)) for names in chunks]


def schedule(record: Claims, book: Book) -> list[tuple[int, Key]]:
    """Block after block; within one, naive and its changes A B C, then C B A."""
    keys = []
    for number, names in enumerate(record.blocks):
        if not names:
            continue
        workload = book.changes[names[0]].workload
        for repeat in range(record.repeats):
            arms = (NAIVE, *names) if repeat % 2 == 0 else (*names[::-1], NAIVE)
            keys += [(number, (workload, arm, repeat)) for arm in arms]
    return keys


def waiting_in(record: Claims, book: Book) -> list[tuple[int, Key]]:
    done = {(one.block, one.run.key) for one in record.taken if one.run.ended == TRAINED}
    return [one for one in schedule(record, book) if one not in done]


def perform(session: Session, record: Claims, run: Runner = process.run) -> Claims:
    """All that is left to run, each kept the moment it ended."""
    began = time.monotonic()
    waiting = waiting_in(record, session.book)
    progress = Progress(len(waiting))
    folders: dict[str, Path] = {}
    while waiting and not _late(began, session.minutes):
        block, key = waiting.pop(0)
        if key[0] not in folders:
            folders[key[0]] = data.make(session.place, key[0], record.size, progress.making_data)
        keys, runs = [one for _, one in waiting], tuple(one.run for one in record.taken)
        ended = _one(session, record, key, folders[key[0]], run, _teller(progress, key, runs, keys))
        record = _with(record, Taken(block=block, run=ended))
        claims_record.save(record, session.out)
        progress.ended(ended, tuple(one.run for one in record.taken), keys)
    if waiting:
        print(f"claims: {len(waiting)} runs are left; go on with --resume", file=sys.stderr)
    return record


def _late(began: float, minutes: float | None) -> bool:
    return minutes is not None and time.monotonic() - began > 60 * minutes


def _teller(progress: Progress, key: Key, runs: tuple[Run, ...], keys: list[Key]) -> process.OnLine:
    return lambda epoch, elapsed: progress.running(key, runs, keys, epoch, elapsed)


def _one(session: Session, record: Claims, key: Key, folder: Path, run: Runner, on_line: process.OnLine) -> Run:
    workload, name, seed = key
    book = session.book
    change = None if name == NAIVE else book.changes[name]
    with tempfile.TemporaryDirectory(prefix="hotlap-claims-") as temporary:
        edits = book.edits(change, workload, record.device)
        place = claims_book.make(session.place, workload, edits, Path(temporary).resolve() / "workloads")
        arm = Changed(
            place=place,
            size=record.size,
            device=record.device,
            epochs=record.epochs[workload],
            max_seconds=session.max_seconds,
            more=tuple(book.arguments(change, record.device, record.size)) if change else (),
        )
        ended = run(arm, (workload, NAIVE, seed), folder, on_line)
    return _published(replace(ended, arm=name))


def _published(run: Run) -> Run:
    """What broke may name folders of this machine, and results are committed."""

    def plain(text: str) -> str:
        return text.replace(sys.prefix, "PYTHON").replace(tempfile.gettempdir(), "TMP")

    return replace(run, errors=tuple(map(plain, run.errors)), why=None if run.why is None else plain(run.why))


def _with(record: Claims, taken: Taken) -> Claims:
    kept = [one for one in record.taken if (one.block, one.run.key) != (taken.block, taken.run.key)]
    return replace(record, taken=(*kept, taken))


def chosen(book: Book, device: str, only: Sequence[str] | None) -> list[Change]:
    """Those measured on the device; of these, the changes or workloads named."""
    runnable = book.runnable(device)
    if not only:
        return runnable
    known = {*book.changes, *book.tasks}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise Refused(f"--only {unknown[0]}: no change or workload of that name; see --list")
    found = [change for change in runnable if change.name in only or change.workload in only]
    left_out = [name for name in only if name in book.changes and device in book.changes[name].not_on]
    if left_out:
        raise Refused(f"{left_out[0]} is not measured on {device}: {book.changes[left_out[0]].not_on[device]}")
    return with_bases(found, book)


def with_bases(changes: Sequence[Change], book: Book) -> list[Change]:
    """What another change is compared with must run beside it."""
    bases = [book.changes[change.against] for change in changes if change.against]
    return [*(base for base in bases if base not in changes), *changes]


def new_record(options: argparse.Namespace, session: Session, changes: Sequence[Change]) -> Claims:
    surroundings.require_packages(())
    here, device = surroundings.look(options.device)
    names = sorted({change.workload for change in changes})
    data.require_room([data.needs(session.place, name, options.size) for name in names], options.size)
    return Claims(
        schema=SCHEMA,
        benchmark=claims_record.BENCHMARK,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=command_line(options),
        machine=here.machine,
        versions=here.versions,
        environment=speed_variables(os.environ),
        device=device,
        size=options.size,
        repeats=options.repeats,
        epochs={name: options.epochs or session.book.epochs(name, options.size) for name in names},
        host_memory=HOST_MEMORY,
        sources={name: claims_book.source(session.place, name) for name in names},
        changes={change.name: session.book.fingerprint(change, device, options.size) for change in changes},
        blocks=tuple(blocks_of(changes, options.share)),
        taken=(),
    )


def command_line(options: argparse.Namespace) -> str:
    words = [f"--device {options.device}", f"--size {options.size}", f"--repeats {options.repeats}"]
    words += [f"--share {options.share}"] if options.share != 1 else []
    words += [f"--epochs {options.epochs}"] if options.epochs else []
    words += [f"--only {','.join(options.only)}"] if options.only else []
    return "python benchmarks/claims.py " + " ".join(words)


def resumed(before: Claims, now: Claims, share: int, book: Book) -> Claims:
    """`before` with what is asked for now; changes that claims.toml has changed since are measured anew."""
    for what, old, new in _conditions(before, now):
        if old != new:
            raise Refused(f"the result was measured with {what} {old}, here it is {new}; write to another --out")
    stale = {name for name, print_ in now.changes.items() if before.changes.get(name, print_) != print_}
    kept = [tuple(name for name in names if name not in stale) for names in before.blocks]
    known = {name for names in kept for name in names}
    added = [book.changes[name] for name in now.changes if name not in known]
    return replace(
        before,
        repeats=max(before.repeats, now.repeats),
        epochs={**before.epochs, **now.epochs},
        sources={**before.sources, **now.sources},
        changes={**before.changes, **now.changes},
        blocks=(*kept, *blocks_of(with_bases(added, book), share)),
        taken=tuple(one for one in before.taken if one.run.arm not in stale),
    )


def _conditions(before: Claims, now: Claims) -> list[tuple[str, object, object]]:
    found: list[tuple[str, object, object]] = [
        (name, getattr(before.machine, name), getattr(now.machine, name)) for name in MACHINE
    ]
    found += [("size", before.size, now.size), ("device", before.device, now.device)]
    for old, new in ((before.versions, now.versions), (before.environment, now.environment)):
        found += [(name, old.get(name, "none"), new.get(name, "none")) for name in sorted({*old, *new})]
    for name in (name for name in now.epochs if name in before.epochs):
        found.append((f"epochs of {name}", before.epochs[name], now.epochs[name]))
        found.append((f"scripts of {name}", before.sources[name], now.sources[name]))
    return found


def told(record: Claims, book: Book) -> str:
    """One line per claim measured so far."""
    lines = []
    for claim in book.claims:
        found = claims_record.figure(record, claim, book) if claim.measured_by else None
        if found is None:
            continue
        value = found.ratio
        interval = f" [{value.low:.3f}, {value.high:.3f}]" if value and value.low and value.high else ""
        text = f"{value.value:.3f}{interval}" if value else "-"
        notes = [f"broken: {found.broken}"] if found.broken else []
        lines.append("  ".join([f"{claim.measured_by:24}", f"{claim.measure:16}", text, *notes]))
    return "\n".join(lines)


def listed(book: Book, changes: Sequence[Change], size: str) -> str:
    lines = []
    for change in changes:
        claims = [claim.measure for claim in book.claims if claim.measured_by == change.name]
        used = ", ".join(dict.fromkeys(claims)) or "as a part"
        lines.append(f"{change.name:24} {change.workload:14} {book.epochs(change.workload, size)} epochs  {used}")
    return "\n".join(lines)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=(claims_book.CPU, claims_book.CUDA), required=True)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--only", type=lambda text: text.split(","), help="changes or workloads, by commas")
    parser.add_argument("--repeats", type=int, default=2, help="runs of every arm of a block (default 2)")
    parser.add_argument("--share", type=int, default=1, help="changes that share one naive (default 1)")
    parser.add_argument("--epochs", type=int, help="of every run (default: as claims.toml says)")
    parser.add_argument("--minutes", type=float, help="start no run after so many minutes")
    parser.add_argument("--max-minutes", type=float, help="a single run may take this long")
    parser.add_argument("--out", type=Path, help="results/<machine>/<date>-claims.json")
    parser.add_argument("--resume", action="store_true", help="go on with --out")
    parser.add_argument("--list", action="store_true", help="what would be measured")
    options = parser.parse_args(arguments)
    if options.out is None and not options.list:
        parser.error("where to keep the result? --out FILE")
    if min(options.repeats, options.share, options.epochs or 1) < 1:
        parser.error("--repeats, --share and --epochs are at least 1")
    return options


def measured(options: argparse.Namespace, book: Book, changes: Sequence[Change]) -> Claims:
    minutes = options.max_minutes
    session = Session(
        book=book,
        place=workloads.folder(),
        out=options.out,
        minutes=options.minutes,
        max_seconds=60 * minutes if minutes else None,
    )
    if options.out.exists() and not options.resume:
        raise Refused(f"{options.out} is there already; go on with it: --resume, or choose another --out")
    record = new_record(options, session, changes)
    if options.resume and options.out.exists():
        record = resumed(claims_record.load(options.out), record, options.share, book)
    claims_record.save(record, options.out)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(AT_START), os.environ.get("PYTHONPATH"))))
    return perform(session, record)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, _interrupt)  # ends the run in flight too, as Ctrl-C does
    try:
        book = claims_book.read()
        changes = chosen(book, options.device, options.only)
        if options.list:
            print(listed(book, changes, options.size))
            return 0
        record = measured(options, book, changes)
    except (BookWrong, Refused, HotlapError) as error:
        print(f"claims: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("claims: interrupted; finished runs are kept, go on with --resume", file=sys.stderr)
        return INTERRUPTED
    print(told(record, book))
    return 1 if any(one.run.ended != TRAINED for one in record.taken) else 0


if __name__ == "__main__":
    sys.exit(main())
