"""Counts host syncs and copies by the line that causes them: noted as they happen, counted when the tape is read."""

from __future__ import annotations

import weakref
from types import CodeType, FrameType
from typing import Any, NamedTuple

from hotlap.observe.frames import _USER, kind_of, place_of, short_library_place, user_frame
from hotlap.records.observation import CopySite, Sync

_VALUE_KINDS = frozenset({"numpy", "tolist", "item", "float", "int", "bool", "index"})
MASK = "mask"
PIN_CHECKS = 10  # per line, whether its tensors are pinned: each answer of the driver costs microseconds


class SyncKey(NamedTuple):
    code: CodeType
    line: int
    kind: str
    via: str | None


class CopyKey(NamedTuple):
    code: CodeType
    line: int
    pinned: bool
    blocking: bool


def _locate(frame: FrameType) -> tuple[CodeType, int, str | None]:
    if kind_of(frame.f_code.co_filename) == _USER:
        return frame.f_code, frame.f_lineno, None
    user = user_frame(frame) or frame
    return user.f_code, user.f_lineno, None if user is frame else short_library_place(frame)


class Syncs:
    """Keeps two counts: one of the timed window, and one of watched steps outside it.

    On CUDA the wait is timed; only masks, which are too common to watch while timing, are counted outside. On a CPU
    nothing waits, so everything is counted outside and costs the timed window nothing. Outside, calls are counted by
    whole steps, from one optimizer step to the next: of few steps, half a step more would show.
    """

    def __init__(self, on_cuda: bool) -> None:
        self.on_cuda = on_cuda
        self.timing = self.watching = False
        self._timed: dict[SyncKey, list[int]] = {}
        self._outside: dict[SyncKey, list[int]] = {}
        self._since_step: dict[SyncKey, list[int]] = {}  # outside, since the last optimizer step
        self._steps_outside = 0  # of optimizers
        self._keys: dict[tuple[CodeType, int, str], SyncKey] = {}  # of the user's own lines
        self._on_host: weakref.ref[Any] | None = None  # the last result of .cpu(), which is free to read

    def note(self, kind: str, frame: FrameType, tensor: Any, args: Any, kwargs: Any, outcome: Any) -> SyncKey | None:
        """Return the line that waits; None if nothing would wait on any device."""
        if self.on_cuda:
            if kind != "synchronize" and not getattr(tensor, "is_cuda", False):
                return None
        elif kind in _VALUE_KINDS and self._on_host is not None and self._on_host() is tensor:
            return None
        if kind == "cpu" and outcome is not None:
            self._on_host = weakref.ref(outcome)
        place = (frame.f_code, frame.f_lasti, kind)
        key = self._keys.get(place)
        if key is None:
            code, line, via = _locate(frame)
            key = SyncKey(code, line, kind, via)
            if via is None:  # a library's line is called from many user lines
                self._keys[place] = key
        return key

    def count(self, key: SyncKey, spent: int) -> None:
        if not (self.on_cuda if self.timing else self.watching):
            return
        _add(self._timed if self.timing else self._since_step, key, 1, spent)

    def watch(self, watching: bool) -> None:
        self.watching = watching
        self._since_step.clear()

    def optimizer_stepped(self) -> None:
        if self.watching and not self.timing:
            self._steps_outside += 1
            for key, (calls, spent) in self._since_step.items():
                _add(self._outside, key, calls, spent)
            self._since_step.clear()

    def rows(self, steps: float, optimizer_steps_a_step: float) -> tuple[Sync, ...]:
        rows = self._rows(self._timed, steps) if steps else []
        outside = {key: row for key, row in self._outside.items() if key.kind == MASK or not self.on_cuda}
        if self._steps_outside:
            rows += self._rows(outside, self._steps_outside / optimizer_steps_a_step)
        return tuple(sorted(rows, key=lambda row: (-row.ms_per_step, row.file, row.line)))

    def _rows(self, table: dict[SyncKey, list[int]], steps: float) -> list[Sync]:
        return [
            Sync(
                **_place_fields(key.code, key.line),
                kind=key.kind,
                per_step=calls / steps,
                ms_per_step=spent / steps / 1e6,
                calls=calls,
                waits=self.on_cuda,
                via=key.via,
            )
            for key, (calls, spent) in table.items()
        ]


def _add(table: dict[SyncKey, list[int]], key: SyncKey, calls: int, spent: int) -> None:
    row = table.setdefault(key, [0, 0])
    row[0] += calls
    row[1] += spent


class Copies:
    """Host-to-device copies; a copy back to the host is a sync."""

    def __init__(self) -> None:
        self.timing = False
        self._table: dict[CopyKey, list[int]] = {}
        self._keys: dict[
            tuple[CodeType, int], tuple[CopyKey, int]
        ] = {}  # of the user's lines, with the number of checks

    def note(
        self, kind: str, frame: FrameType, source: Any, args: Any, kwargs: Any, outcome: Any
    ) -> tuple[CopyKey, int]:
        place = (frame.f_code, frame.f_lasti)
        known = self._keys.get(place)
        if known is not None and known[1] >= PIN_CHECKS:
            return known[0], source.nbytes
        code, line, via = _locate(frame)
        blocking = not (kwargs.get("non_blocking") or any(argument is True for argument in args[2:]))
        key = CopyKey(code, line, bool(source.is_pinned()), blocking)
        if via is None:
            self._keys[place] = (key, known[1] + 1 if known else 1)
        return key, source.nbytes

    def count(self, key: CopyKey, size: int, spent: int) -> None:
        if not self.timing:
            return
        row = self._table.setdefault(key, [0, 0, 0])
        row[0] += 1
        row[1] += size
        row[2] += spent

    def rows(self, steps: float) -> tuple[CopySite, ...]:
        rows = [
            CopySite(
                **_place_fields(key.code, key.line),
                per_step=calls / steps,
                bytes_per_step=size / steps,
                ms_per_step=spent / steps / 1e6,
                pinned=key.pinned,
                blocking=key.blocking,
            )
            for key, (calls, size, spent) in self._table.items()
        ]
        return tuple(sorted(rows, key=lambda row: -row.ms_per_step))


def _place_fields(code: CodeType, line: int) -> dict[str, Any]:
    place = place_of(code, line)
    return {"file": place.file, "line": place.line, "function": place.function}
