"""Measure what the five reports claim, each change alone.

`python benchmarks/claims/claims.py --device cuda --out FILE`

naive.py of a workload and the same with one change (benchmarks/claims/claims.toml) train a few epochs in fresh
processes, interleaved: naive and --share changes make a block that runs A B C, then C B A, with seeds 0, 1, … Every
run is saved the moment it ends; --resume goes on, tries again what broke, and takes in what --only adds; --minutes
ends in time where the machine is lent. docs/claims.md is made of the result by benchmarks/claims/render_claims.py.

--rounds is for machines whose speed drifts from minute to minute. All arms of a block, and naive a second time, are
started together, each in one process with seed 0. They load their data and train their first epoch side by side, then
take turns: one trains one epoch while the others wait. A change is compared with naive round by round, and naive with
itself, which tells how far that can be trusted. Start-up and memory of the host are not measured in this way. A block
is saved when it ends; --resume goes on with those that did not, or in which naive broke.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType

import claims_arm
import claims_book
import claims_record
import claims_rounds
from claims_arm import Runner, Session
from claims_book import Book, BookWrong, Change
from claims_record import ALONE, NAIVE, ONE_BY_ONE, ROUNDS, Claims, Taken

from hotlap.bench import data, process, surroundings, workloads
from hotlap.bench.memory import HOST_MEMORY
from hotlap.bench.order import Key
from hotlap.bench.record import TRAINED, Run
from hotlap.bench.session import SIZES, speed_variables
from hotlap.cli.bench import Progress
from hotlap.errors import INTERRUPTED, HotlapError
from hotlap.records.codec import SCHEMA

AT_START = Path(__file__).resolve().parent / "claims_process"  # of every process
EPOCHS_IN_ROUNDS = 9  # one that is not measured, and eight rounds
FEWEST_IN_ROUNDS = 3  # one round has no interval
MACHINE = ("cpu", "cores", "system", "gpu", "gpus", "cuda")  # what must be the same for runs to be compared


class Refused(ValueError):
    """The request cannot be measured; the message says what to type instead."""


def blocks_of(changes: Sequence[Change], share: int) -> list[tuple[str, ...]]:
    """Group the changes of each workload, at most `share` with one naive, and those compared with one of them along."""
    by_workload: dict[str, list[str]] = {}
    for change in changes:
        if change.against is None:
            by_workload.setdefault(change.workload, []).append(change.name)
    chunks = [names[first : first + share] for names in by_workload.values() for first in range(0, len(names), share)]
    later = [change for change in changes if change.against is not None]
    return [(*names, *(change.name for change in later if change.against in names)) for names in chunks]


def schedule(record: Claims, book: Book) -> list[tuple[int, Key]]:
    """Return the runs block by block; within one, naive and its changes run A B C, then C B A."""
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
    done = {(taken.block, taken.run.key) for taken in record.taken if taken.run.ended == TRAINED}
    return [key for key in schedule(record, book) if key not in done]


def perform(session: Session, record: Claims, run: Runner = process.run) -> Claims:
    """Do all runs that are left, and save each the moment it ends."""
    began = time.monotonic()
    waiting = waiting_in(record, session.book)
    progress = Progress(len(waiting))
    folders: dict[str, Path] = {}
    while waiting and not claims_arm.late(began, session.minutes):
        block, key = waiting.pop(0)
        if key[0] not in folders:
            folders[key[0]] = data.make(session.place, key[0], record.size, progress.making_data)
        keys, runs = [key for _, key in waiting], tuple(taken.run for taken in record.taken)
        ended = claims_arm.trained(session, record, key, folders[key[0]], run, _teller(progress, key, runs, keys))
        record = record.plus(Taken(block=block, run=ended))
        claims_record.save(record, session.out)
        progress.ended(ended, tuple(taken.run for taken in record.taken), keys)
    if waiting:
        print(f"claims: {len(waiting)} runs are left; continue with --resume", file=sys.stderr)
    return record


def _teller(progress: Progress, key: Key, runs: tuple[Run, ...], keys: list[Key]) -> process.OnLine:
    return lambda epoch, elapsed: progress.running(key, runs, keys, epoch, elapsed)


def chosen(book: Book, device: str, only: Sequence[str] | None, method: str = ONE_BY_ONE) -> list[Change]:
    """Return the changes measured on the device in this way; if some are named, only those, in that order."""
    runnable = [change for change in book.runnable(device) if method != ROUNDS or in_rounds(change, book)]
    if not only:
        return runnable
    known = {*book.changes, *book.tasks}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise Refused(f"--only {unknown[0]}: there is no change or workload of that name; see --list")
    _require_measurable([book.changes[name] for name in only if name in book.changes], runnable, device)
    found = [change.name for name in only for change in runnable if name in (change.name, change.workload)]
    return with_bases([book.changes[name] for name in dict.fromkeys(found)], book)


def in_rounds(change: Change, book: Book) -> bool:
    """Return whether rounds measure anything about the change, or about one that is compared with it."""
    measured = any(claim.measured_by == change.name and claim.measure not in ALONE for claim in book.claims)
    return measured or any(compared.against == change.name for compared in book.changes.values())


def _require_measurable(named: Sequence[Change], runnable: Sequence[Change], device: str) -> None:
    for change in named:
        if device in change.not_on:
            raise Refused(f"{change.name} is not measured on {device}: {change.not_on[device]}")
        if change not in runnable:
            raise Refused(f"{change.name} is about {' or '.join(ALONE)}, for which processes start alone: no --rounds")


def with_bases(changes: Sequence[Change], book: Book) -> list[Change]:
    """Add the changes that others are compared with: they must run beside them."""
    bases = [book.changes[change.against] for change in changes if change.against]
    return [*(base for base in bases if base not in changes), *changes]


def new_record(options: argparse.Namespace, session: Session, changes: Sequence[Change]) -> Claims:
    surroundings.require_packages(())
    here, device = surroundings.look(options.device)
    names = sorted({change.workload for change in changes})
    blocks = tuple(blocks_of(changes, options.share))
    at_once = max(map(len, blocks), default=0) + 2 if options.rounds else 1
    data.require_room([_needs(session, name, options.size, at_once) for name in names], options.size)
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
        epochs={name: epochs_of(options, session.book, name) for name in names},
        host_memory=HOST_MEMORY,
        sources={name: claims_book.source(session.place, name) for name in names},
        changes={change.name: session.book.fingerprint(change, device, options.size) for change in changes},
        blocks=blocks,
        taken=(),
        method=method_of(options),
    )


def _needs(session: Session, workload: str, size: str, processes: int) -> data.Needs:
    needed = data.needs(session.place, workload, size)
    return replace(needed, memory_mb=processes * needed.memory_mb)


def epochs_of(options: argparse.Namespace, book: Book, workload: str) -> int:
    usual = EPOCHS_IN_ROUNDS if options.rounds else book.epochs(workload, options.size)
    return options.epochs or usual


def method_of(options: argparse.Namespace) -> str:
    return ROUNDS if options.rounds else ONE_BY_ONE


def command_line(options: argparse.Namespace) -> str:
    words = ["--rounds"] if options.rounds else []
    words += [f"--device {options.device}", f"--size {options.size}"]
    words += [] if options.rounds else [f"--repeats {options.repeats}"]
    words += [f"--share {options.share}"] if options.share != 1 else []
    words += [f"--epochs {options.epochs}"] if options.epochs else []
    words += [f"--only {','.join(options.only)}"] if options.only else []
    return "python benchmarks/claims/claims.py " + " ".join(words)


def resumed(before: Claims, now: Claims, share: int, book: Book) -> Claims:
    """Return `before` with what is requested now; changes that claims.toml has changed since are measured anew."""
    for what, old, new in _conditions(before, now):
        if old != new:
            raise Refused(f"the result was measured with {what} {old}, but here it is {new}; choose another --out")
    stale = {name for name, print_ in now.changes.items() if before.changes.get(name, print_) != print_}
    retained = [tuple(name for name in names if name not in stale) for names in before.blocks]
    known = {name for names in retained for name in names}
    added = [book.changes[name] for name in now.changes if name not in known]
    return replace(
        before,
        command=f"{before.command}; {now.command} --resume" if added else before.command,
        repeats=max(before.repeats, now.repeats),
        epochs={**before.epochs, **now.epochs},
        sources={**before.sources, **now.sources},
        changes={**before.changes, **now.changes},
        blocks=(*retained, *blocks_of(with_bases(added, book), share)),
        taken=tuple(taken for taken in before.taken if taken.run.arm not in stale),
    )


def _conditions(before: Claims, now: Claims) -> list[tuple[str, object, object]]:
    found: list[tuple[str, object, object]] = [
        (name, getattr(before.machine, name), getattr(now.machine, name)) for name in MACHINE
    ]
    found += [(name, getattr(before, name), getattr(now, name)) for name in ("size", "device", "method")]
    for old, new in ((before.versions, now.versions), (before.environment, now.environment)):
        found += [(name, old.get(name, "none"), new.get(name, "none")) for name in sorted({*old, *new})]
    for name in (name for name in now.epochs if name in before.epochs):
        found.append((f"epochs of {name}", before.epochs[name], now.epochs[name]))
        found.append((f"scripts of {name}", before.sources[name], now.sources[name]))
    return found


def figures_text(record: Claims, book: Book) -> str:
    """Return one line per claim measured so far."""
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
    for workload, ratio in claims_record.controls(record):
        lines.append(f"naive against itself      {workload:16}  {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]")
    return "\n".join(lines)


def listed(book: Book, changes: Sequence[Change], options: argparse.Namespace) -> str:
    lines = []
    for change in changes:
        claims = [claim.measure for claim in book.claims if claim.measured_by == change.name]
        used = ", ".join(dict.fromkeys(claims)) or "as a part"
        lines.append(
            f"{change.name:24} {change.workload:14} {epochs_of(options, book, change.workload)} epochs  {used}"
        )
    return "\n".join(lines)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=(claims_book.CPU, claims_book.CUDA), required=True)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--only", type=lambda text: text.split(","), help="changes or workloads, separated by commas")
    parser.add_argument(
        "--rounds", action="store_true", help="run all arms of a block at once, taking turns (see above)"
    )
    parser.add_argument("--repeats", type=int, help="runs of every arm of a block (default 2); with --rounds one")
    parser.add_argument("--share", type=int, default=1, help="changes that share one naive (default 1)")
    parser.add_argument(
        "--epochs", type=int, help=f"of every run (default: as claims.toml says; {EPOCHS_IN_ROUNDS} with --rounds)"
    )
    parser.add_argument("--minutes", type=float, help="start no run, or block of rounds, after so many minutes")
    parser.add_argument("--max-minutes", type=float, help="a run may take this long; with --rounds, one epoch")
    parser.add_argument("--out", type=Path, help="results/<machine>/<date>-claims.json")
    parser.add_argument("--resume", action="store_true", help="continue the result in --out")
    parser.add_argument("--list", action="store_true", help="list what would be measured")
    options = parser.parse_args(arguments)
    if options.out is None and not options.list:
        parser.error("where should the result go? add --out FILE")
    if options.rounds and options.repeats is not None:
        parser.error("--rounds trains every arm once; leave out --repeats")
    if options.rounds and options.epochs is not None and options.epochs < FEWEST_IN_ROUNDS:
        parser.error(
            f"--rounds needs --epochs {FEWEST_IN_ROUNDS} or more: the first is not measured, one has no interval"
        )
    if options.repeats is None:
        options.repeats = 1 if options.rounds else 2
    if min(options.repeats, options.share, 1 if options.epochs is None else options.epochs) < 1:
        parser.error("--repeats, --share and --epochs must be at least 1")
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
        raise Refused(f"{options.out} exists already; continue it with --resume, or choose another --out")
    record = new_record(options, session, changes)
    if options.resume and options.out.exists():
        record = resumed(claims_record.load(options.out), record, options.share, book)
    claims_record.save(record, options.out)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(AT_START), os.environ.get("PYTHONPATH"))))
    return claims_rounds.perform(session, record) if options.rounds else perform(session, record)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, _interrupt)  # ends the run in flight too, as Ctrl-C does
    try:
        book = claims_book.read()
        changes = chosen(book, options.device, options.only, method_of(options))
        if options.list:
            print(listed(book, changes, options))
            return 0
        record = measured(options, book, changes)
    except (BookWrong, Refused, HotlapError) as error:
        print(f"claims: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("claims: interrupted; finished runs are saved, continue with --resume", file=sys.stderr)
        return INTERRUPTED
    print(figures_text(record, book))
    return 1 if any(taken.run.ended != TRAINED for taken in record.taken) else 0


if __name__ == "__main__":
    sys.exit(main())
