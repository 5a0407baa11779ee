"""Host syncs and copies by the line of the user's that makes them."""

from __future__ import annotations

import sys
import weakref
from threading import get_ident
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any

from hotlap.model.observation import COPY, DATA, PHASES, SYNC, CopySite, Sync
from hotlap.observe.clock import Clock
from hotlap.observe.frames import _USER, kind_of, place_of, short_library_place, user_frame

_SYNC, _COPY = PHASES.index(SYNC), PHASES.index(COPY)
_VALUE_KINDS = frozenset({"numpy", "tolist", "item", "float", "int", "bool", "index"})

ASK_PINNED = 10

Key = tuple[CodeType, int, str, str | None]


def _caller() -> FrameType:
    """The frame that called the patched method: the first one outside hotlap's own files."""
    frame = sys._getframe(2)
    room = _ROOM
    while frame.f_back is not None and frame.f_code.co_filename.startswith(room):
        frame = frame.f_back
    return frame


_ROOM = __file__.rsplit("/observe/", 1)[0] + "/"


def _locate(frame: FrameType) -> tuple[CodeType, int, str | None]:
    if kind_of(frame.f_code.co_filename) == _USER:
        return frame.f_code, frame.f_lineno, None
    user = user_frame(frame) or frame
    return user.f_code, user.f_lineno, None if user is frame else short_library_place(frame)


class Syncs:
    """Counts the outermost of nested syncs: printing a tensor is one, whatever it calls inside."""

    def __init__(self, clock: Clock, on_cuda: bool) -> None:
        self._clock, self._on_cuda = clock, on_cuda
        self._table: dict[Key, list[int]] = {}
        self._timed: dict[Key, list[int]] | None = None
        self._depth = 0
        self._started = 0
        self._on_host: weakref.ref[Any] | None = None  # what .cpu() gave last: reading it is free

    def before(self, kind: str, tensor: Any) -> None:
        if get_ident() != self._clock.thread:
            return
        if self._depth:
            self._depth += 1
        elif self._counts(kind, tensor):
            self._depth = 1
            self._clock.enter(_SYNC)
            self._started = perf_counter_ns()

    def after(self, kind: str, tensor: Any, result: Any) -> None:
        if not self._depth or get_ident() != self._clock.thread:
            return
        self._depth -= 1
        if self._depth:
            return
        spent = perf_counter_ns() - self._started
        self._clock.leave(_SYNC)
        code, line, via = _locate(_caller())
        row = self._table.setdefault((code, line, kind, via), [0, 0])
        row[0] += 1
        row[1] += spent
        if kind == "cpu" and result is not None:
            self._on_host = weakref.ref(result)

    def _counts(self, kind: str, tensor: Any) -> bool:
        if self._on_cuda:
            return kind == "synchronize" or bool(getattr(tensor, "is_cuda", False))
        if kind in _VALUE_KINDS and self._on_host is not None and self._on_host() is tensor:
            return False
        return self._clock.current != DATA

    def clear(self) -> None:
        self._table.clear()

    def freeze(self) -> None:
        """The timed window is over: what comes now is counted apart, over steps of its own."""
        self._timed, self._table = self._table, {}

    def rows(self, steps: int, steps_after: int) -> tuple[Sync, ...]:
        if self._timed is None:
            return _sorted(self._rows(self._table, steps))
        after = self._rows(self._table, steps_after) if steps_after else []
        return _sorted(self._rows(self._timed, steps) + after)

    def _rows(self, table: dict[Key, list[int]], steps: int) -> list[Sync]:
        return [
            Sync(
                **_place_fields(code, line),
                kind=kind,
                per_step=calls / steps,
                ms_per_step=spent / steps / 1e6,
                calls=calls,
                waits=self._on_cuda,
                via=via,
            )
            for (code, line, kind, via), (calls, spent) in list(table.items())
        ]


def _sorted(rows: list[Sync]) -> tuple[Sync, ...]:
    return tuple(sorted(rows, key=lambda row: (-row.ms_per_step, row.file, row.line)))


class Copies:
    """Host-to-device copies; a copy back to the host is a sync."""

    def __init__(self, clock: Clock, syncs: Syncs) -> None:
        self._clock, self._syncs = clock, syncs
        self._table: dict[tuple[CodeType, int, bool, bool], list[int]] = {}
        self._pinned: dict[tuple[CodeType, int], list[bool]] = {}
        self._open: list[tuple[str, int]] = []

    def before(self, name: str, tensor: Any, args: Any, kwargs: Any) -> None:
        if get_ident() != self._clock.thread:
            return
        direction = _direction(name, tensor, args, kwargs)
        if direction == "in":
            self._clock.enter(_COPY)
        elif direction == "out":
            self._syncs.before("cpu", tensor if name != "copy_" else args[0])
        self._open.append((direction, perf_counter_ns()))

    def after(self, name: str, tensor: Any, args: Any, kwargs: Any, result: Any) -> None:
        if not self._open or get_ident() != self._clock.thread:
            return
        direction, started = self._open.pop()
        if direction == "in":
            spent = perf_counter_ns() - started
            self._clock.leave(_COPY)
            self._record(tensor if name != "copy_" else args[0], args, kwargs, spent)
        elif direction == "out":
            self._syncs.after("cpu", tensor, result)

    def _record(self, source: Any, args: Any, kwargs: Any, spent: int) -> None:
        code, line, _ = _locate(_caller())
        blocking = not (kwargs.get("non_blocking") or any(one is True for one in args[1:]))
        row = self._table.setdefault((code, line, self._is_pinned(code, line, source), blocking), [0, 0, 0])
        row[0] += 1
        row[1] += source.numel() * source.element_size()
        row[2] += spent

    def _is_pinned(self, code: CodeType, line: int, source: Any) -> bool:
        """Asked of the driver a few times a line only: each answer costs microseconds."""
        asked = self._pinned.setdefault((code, line), [])
        if len(asked) < ASK_PINNED:
            asked.append(bool(source.is_pinned()))
        return asked[-1]

    def clear(self) -> None:
        self._table.clear()

    def rows(self, steps: int) -> tuple[CopySite, ...]:
        rows = [
            CopySite(
                **_place_fields(code, line),
                per_step=calls / steps,
                bytes_per_step=size / steps,
                ms_per_step=spent / steps / 1e6,
                pinned=pinned,
                blocking=blocking,
            )
            for (code, line, pinned, blocking), (calls, size, spent) in list(self._table.items())
        ]
        return tuple(sorted(rows, key=lambda row: -row.ms_per_step))


def _direction(name: str, tensor: Any, args: Any, kwargs: Any) -> str:
    """'in' host to device, 'out' device to host, '' neither."""
    if name == "copy_":
        source = args[0] if args else kwargs.get("src")
        there, here = tensor.is_cuda, getattr(source, "is_cuda", None)
    else:
        there, here = _target_is_cuda(name, args, kwargs), tensor.is_cuda
    if there is None or here is None or there == here:
        return ""
    return "in" if there else "out"


def _target_is_cuda(name: str, args: Any, kwargs: Any) -> bool | None:
    """Where .to(…) or .cuda(…) goes; None when it stays."""
    if name == "cuda":
        return True
    target = args[0] if args else kwargs.get("device", kwargs.get("other"))
    if isinstance(target, str):
        return target.startswith("cuda")
    if isinstance(target, int):
        return True
    if hasattr(target, "is_cuda"):
        return bool(target.is_cuda)
    kind = getattr(target, "type", None)
    if isinstance(kind, str):
        return kind == "cuda"
    return None


def _place_fields(code: CodeType, line: int) -> dict[str, Any]:
    place = place_of(code, line)
    return {"file": place.file, "line": place.line, "function": place.function}
