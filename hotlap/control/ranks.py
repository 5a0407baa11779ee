"""The ranks of one training on one machine: the first decides, and the others follow at the same step.

If each rank decided by its own clock, different ranks would have different entries on. So the first writes which
entries to switch on, and from which step, to a small file that the others read at each step. A rank that is too late,
or cannot carry out an order, reports it in the same file, and then nothing more is tried.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from hotlap.records.private import FILE

LEAD = 2  # steps from an order until it holds, besides how far apart ranks were seen: with a GPU, hosts run ahead
_ORDER = struct.Struct("<qqQBBB")  # the fields of Order, in sequence …
_STATE = struct.Struct("<qQqBB")  # … and of State
_SLOT = 64  # bytes for each record with its checksum
JOINING = 48  # steps, after which ranks not seen yet are on another machine
Arm = frozenset[str]


@dataclass(frozen=True, slots=True)
class Order:
    number: int = 0
    at: int = 0  # the step from which it holds
    arm: Arm = frozenset()
    waits: bool = True  # batches are made as the program makes them …
    batches_off: bool = False  # … and will be for good
    is_over: bool = False  # nothing else will be ordered


@dataclass(frozen=True, slots=True)
class State:
    """The state that a rank reports at each step."""

    step: int = 0
    applied: Arm = frozenset()
    carried_out: int = 0  # the number of the last order carried out
    is_pending: bool = False  # an entry has not reported its outcome yet
    is_apart: bool = False  # it received an order too late, or failed


class Ranks(Protocol):
    """The ranks of a training, as the Decider sees them."""

    follows: bool  # another rank decides
    together: bool  # several ranks train together and have found each other

    def join(self, step: int) -> bool:
        """Return whether the search for other ranks is over: all were found, or never will be."""
        ...

    def order(self, step: int, wanted: Order) -> int:
        """Give an order from the first rank, and return the step at which all ranks carry it out."""
        ...

    def received(self) -> Order | None:
        """Return the last order; called by every rank but the first."""
        ...

    def report(self, state: State) -> None:
        """Report this rank's state; called by every rank but the first."""
        ...

    def others(self) -> list[State]:
        """Return the states of the other ranks; called by the first."""
        ...

    def close(self) -> None: ...


class OneRank:
    """A process that trains by itself."""

    follows = together = False

    def join(self, step: int) -> bool:
        return True

    def order(self, step: int, wanted: Order) -> int:
        return step

    def received(self) -> Order | None:
        return None

    def report(self, state: State) -> None:
        pass

    def others(self) -> list[State]:
        return []

    def close(self) -> None:
        pass


class Board:
    """The shared file, with the first rank's order and the state of each rank."""

    def __init__(self, descriptor: int, names: Iterable[str]) -> None:
        self._descriptor = descriptor
        self._bits = {name: 1 << number for number, name in enumerate(names)}

    def write_order(self, order: Order) -> None:
        bits = self._packed(order.arm)
        self._write(0, _ORDER.pack(order.number, order.at, bits, order.waits, order.batches_off, order.is_over))

    def order(self) -> Order | None:
        found = self._read(0, _ORDER)
        if found is None:
            return None
        number, at, arm, waits, batches_off, is_over = found
        return Order(number, at, self._unpacked(arm), bool(waits), bool(batches_off), bool(is_over))

    def write_state(self, rank: int, state: State) -> None:
        packed = _STATE.pack(
            state.step, self._packed(state.applied), state.carried_out, state.is_pending, state.is_apart
        )
        self._write(1 + rank, packed)

    def state(self, rank: int) -> State | None:
        found = self._read(1 + rank, _STATE)
        if found is None:
            return None
        step, applied, carried_out, is_pending, is_apart = found
        return State(step, self._unpacked(applied), carried_out, bool(is_pending), bool(is_apart))

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)

    def _write(self, slot: int, packed: bytes) -> None:
        os.pwrite(self._descriptor, packed + zlib.crc32(packed).to_bytes(4, "little"), slot * _SLOT)

    def _read(self, slot: int, form: struct.Struct) -> tuple[int, ...] | None:
        """Return the record, or None if it is missing or only half written, so that the next step reads it."""
        found = os.pread(self._descriptor, form.size + 4, slot * _SLOT)
        packed, checksum = found[: form.size], found[form.size :]
        if len(checksum) < 4 or zlib.crc32(packed) != int.from_bytes(checksum, "little"):
            return None
        return form.unpack(packed)

    def _packed(self, arm: Arm) -> int:
        return sum(self._bits[name] for name in arm if name in self._bits)

    def _unpacked(self, bits: int) -> Arm:
        return frozenset(name for name, bit in self._bits.items() if bits & bit)


class SeveralRanks:
    """The ranks started by one `torchrun`, or spawned by one parent."""

    def __init__(self, folder: Path, names: list[str], rank: int, world: int) -> None:
        self._folder, self._names, self._rank, self._world = folder, names, rank, world
        self._board: Board | None = None
        self._began: int | None = None
        self._number = self._spread = 0
        self.follows = self.together = False

    def join(self, step: int) -> bool:
        self._began = step if self._began is None else self._began
        if self._board is None:
            self._board = self._found() if self._rank else self._created()
        if (board := self._board) is not None:
            self.report(State(step))
            if self._rank:
                self.follows = self.together = board.order() is not None
            elif all(board.state(rank) is not None for rank in range(self._world)):
                board.write_order(Order())
                self.together = True
        if not self.together and step - self._began >= JOINING:
            self.report(State(step, is_apart=True))
            self.close()
            return True
        return self.together

    def order(self, step: int, wanted: Order) -> int:
        if self._board is None:
            return step
        self._spread = max([self._spread, *(abs(state.step - step) for state in self.others())])
        self._number += 1
        at = step + LEAD + 2 * self._spread
        self._board.write_order(replace(wanted, number=self._number, at=at))
        return at

    def received(self) -> Order | None:
        return None if self._board is None else self._board.order()

    def report(self, state: State) -> None:
        if self._board is not None:
            self._board.write_state(self._rank, state)

    def others(self) -> list[State]:
        board = self._board
        found = () if board is None else (board.state(rank) for rank in range(self._world) if rank != self._rank)
        return [
            state if state.carried_out == self._number else replace(state, is_pending=True) for state in found if state
        ]

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
            self._board = None

    # Finding each other

    @property
    def _job(self) -> str:
        """A name that only the ranks of one job share: by launcher, or by the process that spawned them."""
        port = os.environ.get("MASTER_PORT", "")
        of_names = zlib.crc32(" ".join(self._names).encode())
        return f"ranks-{os.getppid()}-{port if port.isdigit() else 0}-{self._world}-{of_names}"

    def _created(self) -> Board | None:
        path = self._folder / f"{self._job}-{os.getpid()}"
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE)
            return Board(descriptor, self._names)
        return None

    def _found(self) -> Board | None:
        """Open the board of the first rank that is alive; None if there are two, since either may be meant."""
        alive = [path for path in self._folder.glob(f"{self._job}-*") if _is_alive(path.name.rpartition("-")[2])]
        if len(alive) != 1:
            return None
        with suppress(OSError):
            return Board(os.open(alive[0], os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), self._names)
        return None


def ranks_of(torch: Any, folder: Path | None, names: list[str]) -> Ranks:
    distributed = torch.distributed
    if folder is None or not (distributed.is_available() and distributed.is_initialized()):
        return OneRank()
    rank, world = distributed.get_rank(), distributed.get_world_size()
    return SeveralRanks(folder, names, rank, world) if world > 1 else OneRank()


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (OSError, ValueError):
        return False
    return True
