"""Records every change we make to someone else's object, and how to undo it.

A *site* is one attribute of one object. It holds the raw original and a stack of layers, each owned by a ledger. The
installed value is always rebuilt from the original up, so ledgers may be closed in any order. If another tool wrapped
our wrapper, its reference is redirected to what lies below, and our wrapper drops out of the chain.
"""

from __future__ import annotations

import gc
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from hotlap.patch.hidden_frames import sealed

MISSING: Any = object()
Layer = Callable[[Any], Any]  # takes what lies below, returns its replacement

_sites: dict[tuple[int, str], Attribute] = {}


class Attribute:
    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.original = vars(owner).get(name, MISSING)  # MISSING: inherited, so undoing means deleting
        self.base = _inherited(owner, name) if self.original is MISSING else self.original
        self.layers: list[tuple[Ledger, Layer]] = []
        self.installed: Any = MISSING

    def add(self, ledger: Ledger, layer: Layer) -> None:
        self.layers.append((ledger, layer))
        self._rebuild()

    def remove(self, ledger: Ledger) -> None:
        self.layers = [(owner, layer) for owner, layer in self.layers if owner is not ledger]
        self._rebuild()
        if not self.layers:
            _sites.pop((id(self.owner), self.name), None)

    def hide(self) -> None:
        """Take our wrapper out for a while; a foreign wrapper on top stays in place."""
        if self.installed is not MISSING and vars(self.owner).get(self.name, MISSING) is self.installed:
            self._put(self.original)

    def show(self) -> None:
        if self.installed is not MISSING and vars(self.owner).get(self.name, MISSING) is self.original:
            self._put(self.installed)

    def _rebuild(self) -> None:
        before, new = self.installed, self.base
        for _, layer in self.layers:
            new = _presented(sealed(layer(new)), new)
        self.installed = new if self.layers else MISSING
        current = vars(self.owner).get(self.name, MISSING)
        if before is MISSING or current is before or current is self.original:
            self._put(new if self.layers else self.original)
        else:
            _relink(before, new)

    def _put(self, value: Any) -> None:
        if value is not MISSING:
            setattr(self.owner, self.name, value)
        elif self.name in vars(self.owner):
            delattr(self.owner, self.name)


class Ledger:
    def __init__(self) -> None:
        self.closed = False
        self._mine: list[Attribute] = []
        self._undo: list[Callable[[], Any]] = []

    def wrap(self, owner: Any, name: str, layer: Layer) -> None:
        """Replace an attribute with `layer(attribute)` until this ledger closes; a closed ledger changes nothing."""
        if self.closed:
            return
        site = _sites.setdefault((id(owner), name), Attribute(owner, name))
        if site not in self._mine:
            self._mine.append(site)
        site.add(self, layer)

    def later(self, undo: Callable[[], Any]) -> None:
        """Register the undo of a change that is not an attribute, such as a hook or a callback."""
        self._undo.append(undo)

    def holds(self, owner: Any, name: str) -> bool:
        return any(site.owner is owner and site.name == name for site in self._mine)

    def release(self, owner: Any, name: str) -> None:
        """Restore one attribute now."""
        site = _sites.get((id(owner), name))
        if site is not None and site in self._mine:
            self._mine.remove(site)
            site.remove(self)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        self.hide()
        try:
            yield
        finally:
            self.show()

    def hide(self) -> None:
        for site in self._mine:
            site.hide()

    def show(self) -> None:
        for site in self._mine:
            site.show()

    def close(self) -> None:
        """Undo everything, even if one undo fails; the first failure is raised at the end."""
        self.closed = True
        failures: list[Exception] = []
        undo: list[Callable[[], Any]] = [*(partial(site.remove, self) for site in self._mine), *self._undo]
        self._undo, self._mine = [], []
        while undo:
            try:
                undo.pop()()
            except Exception as failure:  # noqa: BLE001 an undo may be anyone's
                failures.append(failure)
        if failures:
            raise failures[0]


def _presented(wrapper: Any, original: Any) -> Any:
    """Let the wrapper show the parameters of the function below it, by which programs choose what they pass on.

    A function below that is a wrapper itself shows what is below it only where `__wrapped__` is followed, and so does
    ours. Python does not use these defaults, because the wrapper has no parameters of its own that they could fill.
    """
    if wrapper is original or not isinstance(wrapper, types.FunctionType) or not _has_parameters(original):
        return wrapper
    with suppress(TypeError, ValueError):  # another tool gave it a signature that is none
        wrapper.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    if wrapper.__code__.co_argcount == 0:
        wrapper.__defaults__ = original.__defaults__
    if wrapper.__code__.co_kwonlyargcount == 0:
        wrapper.__kwdefaults__ = original.__kwdefaults__
    return wrapper


def _has_parameters(function: Any) -> bool:
    if not isinstance(function, types.FunctionType):
        return False
    return not hasattr(function, "__wrapped__") or hasattr(function, "__signature__")


def _inherited(owner: Any, name: str) -> Any:
    """Return an inherited attribute: raw for a class, so that a staticmethod stays one; bound for an instance."""
    for base in owner.__mro__ if isinstance(owner, type) else ():
        if name in vars(base):
            return vars(base)[name]
    return getattr(owner, name)


def _relink(old: Any, new: Any) -> None:
    """Redirect every holder of our wrapper to its replacement: closures, `__wrapped__`, saved originals.

    A holder that cannot be changed in place (a tuple of defaults, a bound method) is rebuilt, and its own holders are
    relinked. No comprehension may use `old` here: up to Python 3.11 that puts it in a cell, which is one more holder.
    """
    holders = gc.get_referrers(old)
    while holders:
        holder = holders.pop()
        copy = _copy(holder, old, new)
        if copy is not MISSING:
            _relink(holder, copy)
        elif isinstance(holder, types.CellType):
            holder.cell_contents = new
        elif isinstance(holder, dict):
            _relink_dict(holder, old, new)
        elif isinstance(holder, list):
            holder[:] = _replaced(holder, old, new)
        elif isinstance(holder, partial):
            _relink_partial(holder, old, new)
        elif not isinstance(holder, types.FrameType | types.ModuleType | type):
            _relink_attributes(holder, old, new)


def _replaced(items: Iterable[Any], old: Any, new: Any) -> list[Any]:
    return [new if item is old else item for item in items]


def _copy(holder: Any, old: Any, new: Any) -> Any:
    """Return a copy of the holder with our wrapper replaced, or MISSING if it can be changed in place."""
    if type(holder) is tuple:
        return tuple(_replaced(holder, old, new))
    if type(holder) is types.MethodType and holder.__func__ is old:
        return types.MethodType(new, holder.__self__)
    if type(holder) in (staticmethod, classmethod):
        return type(holder)(new)
    return MISSING


def _relink_dict(holder: dict[Any, Any], old: Any, new: Any) -> None:
    keys = [key for key, value in holder.items() if value is old]
    owner = next(
        (
            referrer
            for referrer in gc.get_referrers(holder)
            if isinstance(referrer, type) and _is_dict_of(holder, referrer)
        ),
        None,
    )
    for key in keys:
        if owner is None:
            holder[key] = new
        else:
            setattr(owner, key, new)  # a class caches its methods, so a write to its dict would go unnoticed


def _is_dict_of(holder: dict[Any, Any], owner: type) -> bool:
    return any(referent is holder for referent in gc.get_referents(owner.__dict__))


def _relink_partial(holder: Any, old: Any, new: Any) -> None:
    function, arguments = _replaced((holder.func, holder.args), old, new)
    holder.__setstate__((function, arguments, holder.keywords, vars(holder)))


def _relink_attributes(holder: Any, old: Any, new: Any) -> None:
    """Relink attributes of an object, in slots or where Python stores them before it creates a `__dict__`."""
    slots = [name for base in type(holder).__mro__ for name in vars(base).get("__slots__", ())]
    for name in {"__wrapped__", "__defaults__", *slots, *getattr(holder, "__dict__", ())}:
        if getattr(holder, name, None) is old:
            with suppress(AttributeError, TypeError):  # read-only: it refers to our wrapper, but cannot be changed
                setattr(holder, name, new)
