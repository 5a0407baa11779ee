"""Where an entry is at work: it reaches the seams through here, so that all it did can be taken back.

An entry that fails is withdrawn and the call it stood in goes on without it. An error of the user's own code passes
through untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hotlap.loading.identity import ByIdentity
from hotlap.patch.dynamo import keep_out
from hotlap.patch.hidden_frames import leave_no_frame
from hotlap.patch.ledger import Ledger
from hotlap.patch.seams import Seam, Seams
from hotlap.patch.signals import raised_by_signal
from hotlap.records.plan import Outcome, Status
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.root_discovery import RootDiscovery

CHECKPOINT = "torch.utils.checkpoint"  # ends a recomputation by an exception, as soon as all is saved
Original = Callable[..., Any]
Instead = Callable[[Original, Any, tuple[Any, ...], dict[str, Any]], Any]


class Site:
    def __init__(self, name: str, code: str, value: Any, torch: Any, seams: Seams, moments: RootDiscovery) -> None:
        self.name, self.code, self.value = name, code, value  # value None: the entry finds its own
        self.torch, self.seams, self._moments = torch, seams, moments
        self.asked = False  # named by the user, who may want what no plan does by itself
        self.alongside: frozenset[str] = frozenset()  # names of all entries of this run
        self._known: ByIdentity[bool] = ByIdentity()
        self._by_root: ByIdentity[Instead] | None = None
        self.ledger = Ledger()
        self.on_applied: Callable[[Outcome], None] = lambda outcome: None
        self.on_withdrawn: Callable[[Outcome], None] = lambda outcome: None
        self.closed = False
        self.paused = False  # what it made is kept, and every call is the program's own
        self.coming = False  # something is gathered, for when all of it is there
        self.seconds_keeping = 0.0  # that the program has waited for what is gathered
        self.idle = False  # it was given up: what it said that it did, it does no longer
        self.doubted = False  # what it gave the program may have been wrong, which is said
        self.waits: Callable[[], bool] = lambda: False  # asked by who can begin later: the program is timed as it is
        self._steps_aside = False  # while Dynamo compiles
        self._status: Status | None = None
        self._why = ""
        self._at_seams: list[tuple[Seam, Callable[..., Any]]] = []

    # What the entry says

    def applied(self, what: str) -> None:
        self._tell(Status.APPLIED, what)

    def no_effect(self, why: str) -> None:
        """Said only while nothing was applied: one loader of two may be left as it is."""
        if self._status is not Status.APPLIED:
            self._tell(Status.NO_EFFECT, why)

    def refused(self, why: str) -> None:
        if self._status is not Status.APPLIED:
            self._tell(Status.REFUSED, why)

    def decline(self, declined: EntryDeclined) -> None:
        tell = self.refused if declined.status is Status.REFUSED else self.no_effect
        tell(str(declined))

    def withdraw(self, why: str) -> None:
        """Take back all of it, now."""
        self._tell(Status.WITHDRAWN, why)
        self.close()
        self.on_withdrawn(self.outcome)

    def differs(self, why: str) -> None:
        """What it computes was found not to be what the program would have: off for good, and said."""
        self.doubted = True
        self.withdraw(why)

    def _tell(self, status: Status, why: str) -> None:
        if self._status is Status.WITHDRAWN:
            return
        is_news = status is Status.APPLIED and self._status is not Status.APPLIED
        self._status, self._why = status, why
        if is_news:
            self.on_applied(self.outcome)

    @property
    def has_told(self) -> bool:
        return self._status is not None

    @property
    def outcome(self) -> Outcome:
        status = self._status or Status.NO_EFFECT
        value = None if self.value is None else str(self.value)
        why = self._why or "the moment it waits for never came"
        return Outcome(name=self.name, code=self.code, status=status.value, why=why, value=value)

    # What the entry does

    def first_sight(self, thing: Any) -> bool:
        """Whether this object is seen for the first time here; it is neither marked nor kept alive."""
        if thing in self._known:
            return False
        self._known.put(thing, True)
        return True

    def when_root(self, known: Callable[[Any], None]) -> None:
        """known(module) for each root training module, between two steps, after the second that trains it.

        There may be several, also one after another: what an entry does for one root ends with that root.
        """
        self._moments.when_root(self._guarded(known))

    def before(self, seam: Seam, subscriber: Callable[..., None]) -> None:
        """subscriber(instance, args, kwargs) ahead of each call; of an optimizer's step subscriber(optimizer)."""
        guarded = self._guarded(subscriber)
        seam.subscribe(before=guarded)
        self._at_seams.append((seam, guarded))

    def after(self, seam: Seam, subscriber: Callable[..., None]) -> None:
        """subscriber(instance, args, kwargs, outcome); of an optimizer's step subscriber(optimizer, None)."""
        guarded = self._guarded(subscriber)
        seam.subscribe(after=guarded)
        self._at_seams.append((seam, guarded))

    def stand_in(self, seam: Seam, instead: Instead) -> None:
        """instead(original, instance, args, kwargs) is called in place of the call."""
        guarded = self._standing_in(instead)
        seam.stand_in(guarded)
        self._at_seams.append((seam, guarded))

    def stand_in_for(self, root: Any, instead: Instead) -> None:
        """The same for the calls of one root, until it is gone. `instead` must not hold the root.

        However many roots a program trains, a call passes one function for all of them.
        """
        if self._by_root is None:
            self._by_root = ByIdentity()
            self.stand_in(self.seams.calling, self._root_called)
        self._by_root.put(root, instead)

    def _root_called(self, original: Original, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        instead = None if self._by_root is None else self._by_root.get(module)
        return original(*args, **kwargs) if instead is None else instead(original, module, args, kwargs)

    def replace(
        self, owner: Any, attribute: str, instead: Instead, concerns: Callable[[Any], bool] | None = None
    ) -> None:
        """The same for a function that has no seam; `instance` is a method's first argument, None of a function.

        `concerns(first argument)` is asked first, of what is called far more often than it concerns the entry. Where it
        fails, the call is the program's own.
        """
        guarded = self._standing_in(instead)
        method = isinstance(owner, type)

        def layer(original: Original) -> Original:
            def call(*args: Any, **kwargs: Any) -> Any:
                try:
                    if concerns is not None and not _asked(concerns, args):
                        return original(*args, **kwargs)
                    if method:
                        return guarded(_bound(original, args[0]), args[0], args[1:], kwargs)
                    return guarded(original, None, args, kwargs)
                except BaseException as error:
                    leave_no_frame(error)
                    raise

            vars(call).update(getattr(original, "__dict__", {}))  # torch marks a step that it has put hooks around
            call.__wrapped__ = original  # type: ignore[attr-defined]
            call.__name__ = getattr(original, "__name__", attribute)
            call.__doc__ = getattr(original, "__doc__", None)
            return call

        if not self._steps_aside:
            self._steps_aside = True
            keep_out(self.ledger)
        self.ledger.wrap(owner, attribute, layer)

    def close(self) -> None:
        self.closed = True
        for seam, function in self._at_seams:
            seam.unsubscribe(function)
        self._at_seams.clear()
        self._by_root = None
        self.ledger.close()

    def _failed(self, error: Exception) -> None:
        if self.seams.guard.strict or raised_by_signal(error):
            raise error
        self.withdraw(f"it failed ({type(error).__name__}: {error}) and was taken back")

    def _guarded(self, subscriber: Callable[..., None]) -> Callable[..., None]:
        def call(*what: Any) -> None:
            if self.closed or self.paused:
                return
            try:
                subscriber(*what)
            except Exception as error:  # noqa: BLE001 whatever the entry raises
                self._failed(error)

        return call

    def _standing_in(self, instead: Instead) -> Instead:
        def call(original: Original, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self.closed or self.paused:
                return original(*args, **kwargs)
            attempt = Attempt(original, args, kwargs)
            try:
                return instead(attempt, instance, args, kwargs)
            except Exception as error:
                if error is attempt.error or type(error).__module__ == CHECKPOINT:
                    raise
                self._failed(error)
            # Here no error of ours is being handled, which would become the context of an error of the program's.
            if attempt.error is not None and attempt.as_asked:
                raise attempt.error
            return attempt.outcome if attempt.done else original(*args, **kwargs)

        return call


class Attempt:
    """The original call, remembering whether it was made, what came of it and whether the error was its own."""

    __slots__ = ("_args", "_kwargs", "as_asked", "done", "error", "original", "outcome")  # made several times a step

    def __init__(self, original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.original, self._args, self._kwargs = original, args, kwargs
        self.as_asked = False  # it failed with the very arguments of the user's call
        self.done = False
        self.outcome: Any = None
        self.error: BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self.outcome = self.original(*args, **kwargs)
        except BaseException as error:
            self.error = error
            self.as_asked = _same(dict(enumerate(args)), dict(enumerate(self._args))) and _same(kwargs, self._kwargs)
            raise
        self.done = True
        return self.outcome


def _asked(concerns: Callable[[Any], bool], args: tuple[Any, ...]) -> bool:
    try:
        return bool(args) and concerns(args[0])
    except Exception as error:
        if raised_by_signal(error):
            raise
        return False


def _same(some: dict[Any, Any], others: dict[Any, Any]) -> bool:
    return some.keys() == others.keys() and all(some[key] is others[key] for key in some)


def _bound(method: Any, instance: Any) -> Original:
    """As its class would give it: a method may be a descriptor of any kind."""
    bind = getattr(type(method), "__get__", None)
    return bind(method, instance, type(instance)) if bind else partial(method, instance)
