"""One kind of call that others can subscribe to: a pair of subscriber lists around it.

Subscribers are guarded: one that fails is dropped, and the call goes on. A seam can also write each call to a *tape*:
two entries of (kind, time, thread, note), read later. In a step of a few milliseconds, what we add costs several times
what it costs in a tight loop; a tape entry costs least. A seam can also be *brief* for some steps, which costs next to
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from hotlap.patch.forks import never_free
from hotlap.patch.guard import Guard
from hotlap.patch.signals import comes_from_outside

Subscriber = Callable[..., None]
Entry = tuple[int, int, int, Any]  # kind, perf_counter_ns, thread, note
Append = Callable[[Entry], None]


class Seam:
    """Calls `before(*what)` and `after(*what, outcome)` around one kind of call; a failed call has outcome None."""

    __slots__ = (
        "_after",
        "_before",
        "_guard",
        "_stand_ins",
        "attended",
        "brief",
        "countdown",
        "enter",
        "follow_up",
        "glance",
        "instead",
        "leave",
        "name",
        "note",
        "result",
        "tape",
    )

    def __init__(self, name: str, guard: Guard) -> None:
        self.name = name
        self.instead: Callable[..., Any] | None = None  # replaces the call: instead(wrapped, *what)
        self._stand_ins: list[Callable[..., Any]] = []
        self._guard = guard
        self._before: list[Subscriber] = []
        self._after: list[Subscriber] = []
        self.attended = False  # has subscribers or a stand-in, so the short path will not do
        self.tape: Append | None = None
        self.enter = self.leave = 0
        self.brief = False  # no details for now: the call itself and at most one entry …
        self.glance = 0  # … of this kind, with the note
        self.note: Callable[..., Any] | None = None  # makes the note before the call, for the tape
        self.result: Callable[..., Any] | None = None  # makes the note after it
        self.follow_up: Callable[[], None] | None = None  # called once an optimizer's step is on the tape …
        self.countdown = 0  # … after this many more

    def write_to(
        self,
        tape: Append | None,
        enter: int,
        leave: int,
        note: Callable[..., Any] | None = None,
        result: Callable[..., Any] | None = None,
    ) -> None:
        """Write each call to a tape, with `note(instance, args, kwargs)` and `result(instance, outcome)`.

        Without a note function the first entry carries the instance's id.
        """
        self.tape, self.enter, self.leave, self.note, self.result = tape, enter, leave, note, result

    def subscribe(self, before: Subscriber | None = None, after: Subscriber | None = None) -> None:
        self.attended = True
        if before is not None:
            self._before.append(before)
        if after is not None:
            self._after.append(after)

    def unsubscribe(self, *subscribers: Callable[..., Any]) -> None:
        self._before = [subscriber for subscriber in self._before if subscriber not in subscribers]
        self._after = [subscriber for subscriber in self._after if subscriber not in subscribers]
        self._stand_ins = [stand_in for stand_in in self._stand_ins if stand_in not in subscribers]
        self.instead = _chained(self._stand_ins)
        self.attended = bool(self._before or self._after or self.instead)

    def stand_in(self, instead: Callable[..., Any]) -> None:
        """Run `instead(wrapped, instance, args, kwargs)` in place of the call, which it may make itself.

        Several of them nest: the last added is called first, and its `wrapped` is the one before.
        """
        self._stand_ins.append(instead)
        self.instead, self.attended = _chained(self._stand_ins), True

    def fall_silent(self) -> None:
        """From now on make only the call itself; subscribers are kept alive but no longer called."""
        never_free((self._before, self._after, self._stand_ins, self.instead))
        self._before, self._after, self._stand_ins = [], [], []
        self.instead, self.tape, self.attended = None, None, False

    def around(self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call with subscribers, tape and stand-in, in one function because calls cost time (see above)."""
        if self._before:
            self.before(instance, args, kwargs)
        if self.tape is not None:
            try:
                note = id(instance) if self.note is None else self.note(instance, args, kwargs)
                self.tape((self.enter, perf_counter_ns(), get_ident(), note))
            except Exception as error:  # noqa: BLE001 whatever our own code raises
                self.stop_writing(error)
        outcome = None
        try:
            if self.instead is None:
                outcome = wrapped(*args, **kwargs)
            else:
                outcome = self.instead(wrapped, instance, args, kwargs)
            return outcome
        finally:
            if self.tape is not None:
                now = perf_counter_ns()
                try:
                    note = None if self.result is None else self.result(instance, outcome)
                    self.tape((self.leave, now, get_ident(), note))
                except Exception as error:  # noqa: BLE001 whatever our own code raises
                    self.stop_writing(error)
            if self._after:
                self.after(instance, args, kwargs, outcome)

    def stop_writing(self, error: Exception) -> None:
        if not comes_from_outside(error):
            self.tape = None
        self._guard.failed(f"the tape of the seam '{self.name}'", error)

    def before(self, *what: Any) -> None:
        for subscriber in self._before:
            try:
                subscriber(*what)
            except Exception as error:
                if comes_from_outside(error):
                    raise
                self._drop(subscriber, error)

    def after(self, *what: Any) -> None:
        for subscriber in self._after:
            try:
                subscriber(*what)
            except Exception as error:
                if comes_from_outside(error):
                    raise
                self._drop(subscriber, error)

    def _drop(self, subscriber: Subscriber, error: Exception) -> None:
        self._before = [candidate for candidate in self._before if candidate is not subscriber]
        self._after = [candidate for candidate in self._after if candidate is not subscriber]
        name = getattr(subscriber, "__qualname__", repr(subscriber))
        self._guard.failed(f"{name} at the seam '{self.name}'", error)


def _chained(stand_ins: list[Callable[..., Any]]) -> Callable[..., Any] | None:
    if len(stand_ins) < 2:
        return stand_ins[0] if stand_ins else None
    *inner, outermost = stand_ins
    within = _chained(inner)
    assert within is not None

    def instead(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return outermost(
            lambda *positional, **named: within(wrapped, instance, positional, named), instance, args, kwargs
        )

    return instead
