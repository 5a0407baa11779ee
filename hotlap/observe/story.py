"""Reads the tape: phases, steps, batches, losses, syncs. Everything here runs afterwards, with the recorded times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hotlap.observe import tape as t
from hotlap.observe.clock import Clock
from hotlap.observe.loaders import EVALUATION, TRAIN, Loaders
from hotlap.observe.losses import Losses
from hotlap.observe.steps import Boundary, StepClock
from hotlap.observe.syncs import Copies, Syncs
from hotlap.observe.tally import Tally
from hotlap.patch.seams import Entry
from hotlap.records.observation import DATA, PHASES, SPAN_PREFIX

_DATA = PHASES.index(DATA)


class Story:
    """Reconstructs what the training thread did; entries of other threads are skipped."""

    def __init__(self, now: int, thread: int, loaders: Loaders, losses: Losses, tally: Tally) -> None:
        self.clock = Clock(now)
        self.thread = thread
        self.loaders, self.losses, self.tally = loaders, losses, tally
        self.steps = StepClock(self.clock)
        self.syncs: Syncs | None = None
        self.copies: Copies | None = None
        self.spans: dict[str, list[float]] = {}
        self.on_step: Callable[[Boundary], None] = lambda boundary: None
        self.on_error: Callable[[str, Exception], None] = _raise
        self._offset = 0  # hotlap's own time, subtracted from all later times
        self._syncs_open: list[int | None] = []  # when each began; None: not a wait of the program
        self._copy_began = 0
        self._spans_open: list[int] = []
        self._stepped_for_scaler: set[int] = set()  # optimizers that stepped since a scaler last stepped them
        self._handlers: dict[int, Callable[[int, Any], None]] = {
            t.ITERATE: self._iterate,
            t.ITERATED: self._iterated,
            t.FETCH: self._fetch,
            t.FETCHED: self._fetched,
            t.STEP: self._step,
            t.STEPPED: self._stepped,
            t.CALL: self._call,
            t.DIFFERENTIATE: self._differentiate,
            t.SYNC_BEGINS: self._sync_begins,
            t.SYNC_ENDS: self._sync_ends,
            t.COPY_BEGINS: self._copy_begins,
            t.COPY_ENDS: self._copy_ends,
            t.SPAN: self._span,
            t.SPANNED: self._spanned,
            t.SCALER_STEPPED: self._scaler_stepped,
            t.WATCH: self._watch,
            t.LOSS: self._loss,
            t.DETAIL: self._detail,
            t.MARK: self._mark,
        }

    def read(self, entries: Sequence[Entry]) -> None:
        for kind, at, thread, note in entries:
            if kind == t.PAUSE:
                self._offset += note
            elif thread == self.thread:
                self._read(kind, at - self._offset, note)

    def _read(self, kind: int, at: int, note: Any) -> None:
        handler = self._handlers.get(kind)
        if handler is not None:
            try:
                handler(at, note)
            except Exception as error:  # noqa: BLE001 this kind of entry is lost, the others are still read
                del self._handlers[kind]
                self.on_error(f"reading {handler.__name__} off the tape", error)
        elif kind in t.PHASE_OF:
            self.clock.enter(t.PHASE_OF[kind], at)
        elif kind - 1 in t.PHASE_OF:
            self.clock.leave(t.PHASE_OF[kind - 1], at)

    def close_step(self) -> None:
        boundary = self.steps.close()
        if boundary is not None:
            self.losses.close_step()
            self.tally.close_step()
            self.on_step(boundary)

    def phase_now(self, unread: Sequence[Entry]) -> str:
        """Return the current phase, including what is on the tape but not yet read."""
        clock = self.clock.copy()  # called from another thread
        for kind, at, thread, note in unread:
            if thread == self.thread:
                self._follow(clock, kind, at, note)
        return clock.current

    def _follow(self, clock: Clock, kind: int, at: int, note: Any) -> None:
        """Apply only the phase change of an entry."""
        if kind == t.CALL:
            clock.evaluate(bool(note and note[0]), at)
        elif kind in (t.ITERATE, t.FETCH):
            _evaluate_by(note if kind == t.ITERATE else self.loaders.role_of(note), clock, at)
        if kind in t.PHASE_OF:
            clock.enter(t.PHASE_OF[kind], at)
        elif kind - 1 in t.PHASE_OF and not (kind == t.ITERATED and note is not None):
            clock.leave(t.PHASE_OF[kind - 1], at)
        elif kind in (t.SPAN, t.SPANNED):
            (clock.enter if kind == t.SPAN else clock.leave)(clock.phase(SPAN_PREFIX + note), at)

    # Loading

    def _iterate(self, at: int, role: str) -> None:
        _evaluate_by(role, self.clock, at)
        self.clock.enter(_DATA, at)

    def _iterated(self, at: int, note: Any) -> None:
        """Handle an entry that is written twice: by the seam at the exit, then by the agent with what was iterated."""
        if note is None:
            self.clock.leave(_DATA, at)
        else:
            self.loaders.iterated(*note)

    def _fetch(self, at: int, iterator: int) -> None:
        self.close_step()
        self.loaders.requested(iterator)
        _evaluate_by(self.loaders.role_of(iterator), self.clock, at)
        self.clock.enter(_DATA, at)

    def _fetched(self, at: int, note: tuple[int, int | None] | None) -> None:
        self.clock.leave(_DATA, at)
        if note is None:
            self.loaders.fetched_as_expected()
        else:
            self.loaders.fetched(*note)

    # Training

    def _call(self, at: int, note: tuple[bool, int] | None) -> None:
        evaluating, size = note or (False, 0)
        self.clock.evaluate(evaluating, at)
        if evaluating:
            self.loaders.evaluated()
        else:
            self.tally.called_with(size)
        self.clock.enter(t.PHASE_OF[t.CALL], at)

    def _differentiate(self, at: int, loss: Any) -> None:
        self.losses.add(loss)
        self.tally.differentiated()
        self.clock.enter(t.PHASE_OF[t.DIFFERENTIATE], at)

    def _loss(self, at: int, loss: Any) -> None:
        self.losses.add(loss)

    def _detail(self, at: int, detailed: bool) -> None:
        self.clock.look(detailed, at)

    def _mark(self, at: int, event: Any) -> None:
        self.steps.mark(event)

    def _step(self, at: int, optimizer: int) -> None:
        if self.steps.has_stepped(optimizer):
            self.close_step()
        self.losses.stepping = True
        self.clock.enter(t.PHASE_OF[t.STEP], at)

    def _stepped(self, at: int, note: int | tuple[int, Any]) -> None:
        self.losses.stepping = False
        if self.syncs is not None:
            self.syncs.optimizer_stepped()
        self.clock.leave(t.PHASE_OF[t.STEP], at)
        optimizer, event = note if isinstance(note, tuple) else (note, None)
        self._stepped_for_scaler.add(optimizer)
        self._optimizer_ended(at, optimizer, event)

    def _scaler_stepped(self, at: int, optimizer: int) -> None:
        """Count a step that the scaler skipped because of infinities; to the user it was a step all the same."""
        if optimizer in self._stepped_for_scaler:
            self._stepped_for_scaler.discard(optimizer)
            return
        if self.steps.has_stepped(optimizer):
            self.close_step()
        self.tally.skipped += 1
        self._optimizer_ended(at, optimizer, None)

    def _optimizer_ended(self, at: int, optimizer: int, event: Any) -> None:
        self.loaders.stepped()
        self.losses.optimizer_ended()
        self.tally.optimizer_ended()
        self.steps.optimizer_ended(at, optimizer, self.losses.backwards, event)

    # Waiting and copying; the outermost of nested syncs counts (printing a tensor is one, whatever it calls inside)

    def _watch(self, at: int, watching: bool) -> None:
        if self.syncs is not None:
            self.syncs.watch(watching)

    def _sync_begins(self, at: int, note: Any) -> None:
        nested = any(began is not None for began in self._syncs_open)
        # In a dataset's own code tensors live on the host, whatever the device of the model.
        loading = self.syncs is not None and not self.syncs.on_cuda and self.clock.inside(_DATA)
        if nested or loading:
            self._syncs_open.append(None)
        else:
            self._syncs_open.append(at)
            self.clock.enter(t.PHASE_OF[t.SYNC_BEGINS], at)

    def _sync_ends(self, at: int, key: Any) -> None:
        began = self._syncs_open.pop() if self._syncs_open else None
        if began is None:
            return
        self.clock.leave(t.PHASE_OF[t.SYNC_BEGINS], at)
        if key is not None and self.syncs is not None:
            self.syncs.count(key, at - began)

    def _copy_begins(self, at: int, note: Any) -> None:
        self._copy_began = at
        self.clock.enter(t.PHASE_OF[t.COPY_BEGINS], at)

    def _copy_ends(self, at: int, note: Any) -> None:
        self.clock.leave(t.PHASE_OF[t.COPY_BEGINS], at)
        if note is not None and self.copies is not None:
            key, size = note
            self.copies.count(key, size, at - self._copy_began)

    # The user's own sections

    def _span(self, at: int, name: str) -> None:
        self._spans_open.append(at)
        self.clock.enter(self.clock.phase(SPAN_PREFIX + name), at)

    def _spanned(self, at: int, name: str) -> None:
        if not self._spans_open:
            return
        self.clock.leave(self.clock.phase(SPAN_PREFIX + name), at)
        row = self.spans.setdefault(name, [0, 0.0])
        row[0] += 1
        row[1] += (at - self._spans_open.pop()) / 1e9


def _evaluate_by(role: str, clock: Clock, at: int) -> None:
    """Switch evaluation on or off by the role of a loader, if it is known."""
    if role in (EVALUATION, TRAIN):
        clock.evaluate(role == EVALUATION, at)


def _raise(what: str, error: Exception) -> None:
    raise error
