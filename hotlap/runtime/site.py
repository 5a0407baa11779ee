"""The site of an entry: it reaches the seams only through here, so that everything it does can be undone.

An entry that fails is withdrawn, and the call it replaced goes on without it. An error in the user's own code passes
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
from hotlap.patch.signals import comes_from_outside
from hotlap.records.plan import Outcome, Status
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.root_discovery import RootDiscovery

CHECKPOINT = "torch.utils.checkpoint"  # ends a recomputation with an exception once everything is saved
Original = Callable[..., Any]
Instead = Callable[[Original, Any, tuple[Any, ...], dict[str, Any]], Any]


class Site:
    def __init__(
        self, name: str, code: str, value: Any, torch: Any, seams: Seams, root_discovery: RootDiscovery
    ) -> None:
        self.name, self.code, self.value = name, code, value  # None: the entry chooses the value
        self.torch, self.seams, self._root_discovery = torch, seams, root_discovery
        self.asked = False  # named by the user, so it may do what no plan does by itself
        self.alongside: frozenset[str] = frozenset()  # names of all entries of this run
        self._known: ByIdentity[bool] = ByIdentity()
        self._by_root: ByIdentity[Instead] | None = None
        self.ledger = Ledger()
        self.on_applied: Callable[[Outcome], None] = lambda outcome: None
        self.on_withdrawn: Callable[[Site], None] = lambda site: None
        self.closed = False
        self.paused = False  # its state is kept, and every call is the program's own
        self.coming = False  # it is gathering data, to be used once complete
        self.seconds_keeping = 0.0  # that the program has waited for data to be gathered
        self.idle = False  # it gave up: what it reported as applied no longer happens
        self.doubted = False  # its results may have been wrong, which is reported
        # Whether an entry that can start later holds back, so that the unchanged program is timed.
        self.waits: Callable[[], bool] = lambda: False
        self._steps_aside = False  # while Dynamo compiles
        self._status: Status | None = None
        self._why = ""
        self._at_seams: list[tuple[Seam, Callable[..., Any]]] = []

    # What the entry reports

    def applied(self, what: str) -> None:
        self._report(Status.APPLIED, what)

    def no_effect(self, why: str) -> None:
        """Report no effect, unless something was applied: of two loaders, one may run unchanged."""
        if self._status is not Status.APPLIED:
            self._report(Status.NO_EFFECT, why)

    def refused(self, why: str) -> None:
        if self._status is not Status.APPLIED:
            self._report(Status.REFUSED, why)

    def decline(self, declined: EntryDeclined) -> None:
        tell = self.refused if declined.status is Status.REFUSED else self.no_effect
        tell(str(declined))

    def withdraw(self, why: str) -> None:
        """Undo everything now, and report why."""
        self._report(Status.WITHDRAWN, why)
        self.close()
        self.on_withdrawn(self)

    def differs(self, why: str) -> None:
        """Withdraw for good, because the entry computed something else than the program would have."""
        self.doubted = True
        self.withdraw(why)

    def _report(self, status: Status, why: str) -> None:
        if self._status is Status.WITHDRAWN:
            return
        is_news = status is Status.APPLIED and self._status is not Status.APPLIED
        self._status, self._why = status, why
        if is_news:
            self.on_applied(self.outcome)

    @property
    def has_reported(self) -> bool:
        return self._status is not None

    @property
    def outcome(self) -> Outcome:
        status = self._status or Status.NO_EFFECT
        value = None if self.value is None else str(self.value)
        why = self._why or "never triggered in these steps"
        return Outcome(name=self.name, code=self.code, status=status, why=why, value=value)

    # What the entry does

    def first_sight(self, obj: Any) -> bool:
        """Return whether this site sees the object for the first time; it is neither marked nor kept alive."""
        if obj in self._known:
            return False
        self._known.put(obj, True)
        return True

    def when_root(self, known: Callable[[Any], None]) -> None:
        """Call `known(module)` for each root training module, between two steps, after the second that trains it.

        There may be several, even one after another: what an entry does for a root ends with that root.
        """
        self._root_discovery.when_root(self._guarded(known))

    def before(self, seam: Seam, subscriber: Callable[..., None]) -> None:
        """Call `subscriber(instance, args, kwargs)` before each call; for a step, `subscriber(optimizer)`."""
        guarded = self._guarded(subscriber)
        seam.subscribe(before=guarded)
        self._at_seams.append((seam, guarded))

    def after(self, seam: Seam, subscriber: Callable[..., None]) -> None:
        """Call `subscriber(instance, args, kwargs, outcome)` after each; for a step, `subscriber(optimizer, None)`."""
        guarded = self._guarded(subscriber)
        seam.subscribe(after=guarded)
        self._at_seams.append((seam, guarded))

    def stand_in(self, seam: Seam, instead: Instead) -> None:
        """Run `instead(original, instance, args, kwargs)` in place of each call."""
        guarded = self._standing_in(instead)
        seam.stand_in(guarded)
        self._at_seams.append((seam, guarded))

    def stand_in_for(self, root: Any, instead: Instead) -> None:
        """Run `instead` in place of the calls of one root, until it is freed. `instead` must not hold the root.

        However many roots a program trains, each call passes through a single function for all of them.
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
        """Run `instead` in place of a function without a seam; `instance` is a method's first argument, else None.

        If given, `concerns(first argument)` is called first, for functions called far more often than concerns the
        entry. If it fails, the call is the program's own.
        """
        guarded = self._standing_in(instead)
        method = isinstance(owner, type)

        def layer(original: Original) -> Original:
            def call(*args: Any, **kwargs: Any) -> Any:
                try:
                    if concerns is not None and not _concerns_first(concerns, args):
                        return original(*args, **kwargs)
                    if method:
                        return guarded(_bound(original, args[0]), args[0], args[1:], kwargs)
                    return guarded(original, None, args, kwargs)
                except BaseException as error:
                    leave_no_frame(error)
                    raise

            vars(call).update(getattr(original, "__dict__", {}))  # torch marks a step that it wraps with hooks
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
        if self.seams.guard.strict or comes_from_outside(error):
            raise error
        self.withdraw(f"it failed ({type(error).__name__}: {error}) and was undone")

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
            # No error of ours is being handled here: it would become the context of the program's error.
            if attempt.error is not None and attempt.as_called:
                raise attempt.error
            return attempt.outcome if attempt.done else original(*args, **kwargs)

        return call


class Attempt:
    """The original call; records whether it was made, its outcome, and whether the error was its own."""

    __slots__ = ("_args", "_kwargs", "as_called", "done", "error", "original", "outcome")  # made several times a step

    def __init__(self, original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.original, self._args, self._kwargs = original, args, kwargs
        self.as_called = False  # it failed with the exact arguments of the user's call
        self.done = False
        self.outcome: Any = None
        self.error: BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self.outcome = self.original(*args, **kwargs)
        except BaseException as error:
            self.error = error
            self.as_called = _same(dict(enumerate(args)), dict(enumerate(self._args))) and _same(kwargs, self._kwargs)
            raise
        self.done = True
        return self.outcome


def _concerns_first(concerns: Callable[[Any], bool], args: tuple[Any, ...]) -> bool:
    try:
        return bool(args) and concerns(args[0])
    except Exception as error:
        if comes_from_outside(error):
            raise
        return False


def _same(left: dict[Any, Any], right: dict[Any, Any]) -> bool:
    return left.keys() == right.keys() and all(left[key] is right[key] for key in left)


def _bound(method: Any, instance: Any) -> Original:
    """Return the method bound as its class would: it may be any kind of descriptor."""
    bind = getattr(type(method), "__get__", None)
    return bind(method, instance, type(instance)) if bind else partial(method, instance)
