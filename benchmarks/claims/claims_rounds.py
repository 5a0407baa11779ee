"""Train several programs by turns, so that a machine that is faster in one minute than in the next is so for all.

All are started, load their data and train their first epoch side by side, in which all compiling and tuning happens.
From the second epoch on exactly one trains at a time, one epoch each, and the order rotates from round to round: A B C,
B C A, C A B. After the last round all are released and end by themselves.

Each process has a line to here, a Unix socket that claims_process/sitecustomize.py opens. After each epoch it says so
and waits for a signal, or until the line is cut. Nothing of a workload goes on meanwhile, nor is timed: what was
left to the device has been read, workers have ended or wait to be asked for batches, and the next epoch asks them once
its clock runs. One that dies or is too slow is ended, and the others go on without it.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import claims_arm
import claims_record
from claims_arm import Runner, Session
from claims_record import NAIVE, NAIVE_AGAIN, NAIVES, Claims, Taken

from hotlap.bench import data, process
from hotlap.bench.order import Key
from hotlap.bench.process import OnLine
from hotlap.bench.record import TIME_LIMIT, TRAINED, Run
from hotlap.cli.bench import Progress

ADDRESS = "HOTLAP_CLAIMS_TURNS"  # read by claims_process/sitecustomize.py
LOOK_EVERY = 0.1  # seconds, for a process that ended without a word
Start = Callable[[OnLine], Run]  # trains to the end; what its OnLine raises ends the process


def perform(session: Session, record: Claims, run: Runner = process.run) -> Claims:
    """Run all blocks that are left, and save each when it ends."""
    began = time.monotonic()
    waiting = blocks_left(record)
    while waiting and not claims_arm.late(began, session.minutes):
        block = waiting.pop(0)
        for ended in _trained(session, record, block, run):
            record = record.plus(Taken(block=block, run=ended))
            _tell(ended)
        claims_record.save(record, session.out)
    if waiting:
        print(f"claims: {len(waiting)} blocks are left; continue with --resume", file=sys.stderr)
    return record


def blocks_left(record: Claims) -> list[int]:
    """Return blocks in which an arm did not run. Broken arms are not retried, but naive is: all are compared to it."""
    ran = {
        (taken.block, taken.run.arm)
        for taken in record.taken
        if taken.run.ended == TRAINED or taken.run.arm not in NAIVES
    }
    blocks = enumerate(record.blocks)
    return [block for block, names in blocks if names and not ran >= {(block, arm) for arm in arms_of(names)}]


def arms_of(names: Sequence[str]) -> list[str]:
    """Return the arms in the order of their turns; two naive half a round apart, so that one is near every change."""
    half = len(names) // 2
    return [NAIVE, *names[:half], NAIVE_AGAIN, *names[half:]]


def _trained(session: Session, record: Claims, block: int, run: Runner) -> list[Run]:
    names = record.blocks[block]
    workload = session.book.changes[names[0]].workload
    folder = data.make(session.place, workload, record.size, Progress(0).making_data)
    arms, rounds = arms_of(names), record.epochs[workload] - 1
    print(f"claims: {workload}, {rounds} rounds of {len(arms)} processes: {', '.join(arms)}", file=sys.stderr)
    unlimited = replace(session, max_seconds=None)  # a process that waits uses up none of its time

    def start(arm: str, on_line: OnLine) -> Run:
        began = time.monotonic()
        try:
            return claims_arm.trained(unlimited, record, (workload, arm, 0), folder, run, on_line)
        except GivenUp:
            return _too_long((workload, arm, 0), session.max_seconds or 0.0, time.monotonic() - began)

    starts = {arm: partial(start, arm) for arm in arms}
    return list(by_turns(starts, rounds, session.max_seconds).values())


def _too_long(key: Key, max_seconds: float, seconds: float) -> Run:
    workload, arm, seed = key
    return Run(
        workload=workload,
        arm=arm,
        seed=seed,
        started=(datetime.now(timezone.utc) - timedelta(seconds=seconds)).isoformat(timespec="seconds"),
        command=f"python {workload}/naive.py",
        ended=TIME_LIMIT,
        why=f"start, an epoch or end took more than {max_seconds / 60:.3g} min, the limit of --max-minutes",
        exit_code=-signal.SIGKILL,
        seconds=seconds,
        lines=(),
        errors=(),
        peak_host_mb=None,
        peak_device_mb=None,
    )


def _tell(run: Run) -> None:
    what = "trained" if run.ended == TRAINED else f"broken, {run.why}"
    print("\n    ".join([f"{run.workload} {run.arm}: {what}, {run.seconds:.1f} s", *run.errors]), file=sys.stderr)


class GivenUp(Exception):
    """Raised in the thread that follows a process, to end it."""


class Seat:
    """One program: the thread that follows its process, and the line to it."""

    def __init__(self, start: Start, pool: Executor) -> None:
        self._given_up = threading.Event()
        self._line: socket.socket | None = None
        self.run = pool.submit(start, self._watch)

    def _watch(self, epoch: int, elapsed: float) -> None:
        if self._given_up.is_set():
            raise GivenUp

    def take(self, door: socket.socket) -> None:
        """Take the line of its process, unless that ended first. It must be this one's: the next one starts later."""
        while self._line is None and not self.run.done():
            with suppress(TimeoutError):
                self._line, _ = door.accept()
                self._line.settimeout(LOOK_EVERY)

    def wait(self, until: float) -> None:
        """Wait for the end of its epoch, or of its process, which does not live much longer than `until`."""
        while not self.run.done():
            if self._heard():
                return
            if time.monotonic() > until:
                self.give_up()

    def _heard(self) -> bool:
        try:
            word = self._line.recv(1) if self._line else b""
        except TimeoutError:
            return False
        except OSError:  # the process is gone, or was let go
            word = b""
        if not word:
            time.sleep(LOOK_EVERY)
        return bool(word)

    def go(self) -> None:
        with suppress(OSError):  # the process is gone
            if self._line:
                self._line.sendall(b".")

    def let_go(self) -> None:
        """Release the process: it never waits again."""
        if self._line:
            self._line.close()

    def give_up(self) -> None:
        self._given_up.set()
        self.let_go()


def by_turns(starts: Mapping[str, Start], rounds: int, max_seconds: float | None) -> dict[str, Run]:
    """Return how each ended. `max_seconds` apply to the start and first epoch, to each later one, and to the end."""
    seats: dict[str, Seat] = {}
    with _door() as door, ThreadPoolExecutor(len(starts)) as pool:
        try:
            for name, start in starts.items():
                seats[name] = Seat(start, pool)
                seats[name].take(door)
            _play(list(seats.values()), rounds, math.inf if max_seconds is None else max_seconds)
            return {name: seat.run.result() for name, seat in seats.items()}
        finally:  # where something went wrong or Ctrl-C was pressed, the processes are still there
            for seat in seats.values():
                seat.give_up()


def _play(seats: Sequence[Seat], rounds: int, max_seconds: float) -> None:
    _wait_for(seats, max_seconds)
    for number in range(rounds):
        for seat in rotated(seats, number):
            seat.go()
            _wait_for([seat], max_seconds)
    for seat in seats:
        seat.let_go()
    _wait_for(seats, max_seconds)


def _wait_for(seats: Sequence[Seat], max_seconds: float) -> None:
    until = time.monotonic() + max_seconds
    for seat in seats:
        seat.wait(until)


def rotated(seats: Sequence[Seat], number: int) -> list[Seat]:
    """Rotate the order: over as many rounds as seats each has every place once, and none has two turns in a row."""
    first = number % len(seats)
    return [*seats[first:], *seats[:first]]


@contextmanager
def _door() -> Iterator[socket.socket]:
    """Open the socket to which processes that start now connect."""
    with tempfile.TemporaryDirectory(prefix="hotlap-") as folder, socket.socket(socket.AF_UNIX) as door:
        address = str(Path(folder) / "turns")
        door.bind(address)
        door.listen()
        door.settimeout(LOOK_EVERY)
        os.environ[ADDRESS] = address
        try:
            yield door
        finally:
            del os.environ[ADDRESS]
