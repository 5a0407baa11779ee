"""Find, during one step, the function of the user's that computes the loss from what the root returned."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any

NOT_THE_USERS = {"torch", "hotlap", *sys.stdlib_module_names}
MOST_EVENTS = 200_000  # a step that does more in Python than this is not watched to its end
DEEP = 2  # levels of nested containers


@dataclass(frozen=True)
class NamedFunction:
    """A function, and the names in modules that refer to it."""

    function: FunctionType
    held: tuple[tuple[Any, str], ...]


class Watch:
    """Collects, between the root's forward and the backward, the outermost functions that take and return tensors with
    a gradient. Python reports every call, which costs as much as the call itself, so this lasts one step only.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._open: FrameType | None = None
        self._events = 0
        self._found: list[tuple[Any, dict[str, Any]]] = []

    def begin(self) -> bool:
        """Start, and return True, unless the program or a debugger already watches calls."""
        if sys.getprofile() is not None:
            return False
        sys.setprofile(self._noted)
        return True

    def end(self) -> list[NamedFunction]:
        if sys.getprofile() == self._noted:
            sys.setprofile(None)
        self._open = None
        places = [_place(code, names) for code, names in self._found]
        self._found = []
        return [place for place in places if place is not None]

    def _noted(self, frame: FrameType, event: str, outcome: Any) -> None:
        self._events += 1
        if self._events > MOST_EVENTS:
            sys.setprofile(None)
        elif event == "call" and self._open is None and self._is_given_one(frame):
            self._open = frame
        elif event == "return" and frame is self._open:
            self._open = None
            found = (frame.f_code, frame.f_globals)
            if found not in self._found and any(tensor.requires_grad for tensor in leaves(self._torch, outcome)):
                self._found.append(found)

    def _is_given_one(self, frame: FrameType) -> bool:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in NOT_THE_USERS:
            return False
        code = frame.f_code
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = frame.f_locals if arguments else {}
        given = leaves(self._torch, [values.get(name) for name in arguments])
        return any(tensor.grad_fn is not None for tensor in given)


def leaves(torch: Any, value: Any, deep: int = DEEP) -> list[Any]:
    """Return the tensors in a value and in the containers nested in it."""
    if isinstance(value, torch.Tensor):
        return [value]
    if deep < 0 or not isinstance(value, tuple | list | dict):
        return []
    return [
        tensor
        for element in (value.values() if isinstance(value, dict) else value)
        for tensor in leaves(torch, element, deep - 1)
    ]


def _place(code: Any, names: dict[str, Any]) -> NamedFunction | None:
    """Return the function, or None if no module refers to it: a method, a nested or a decorated function."""
    own = [value for value in names.values() if isinstance(value, FunctionType) and value.__code__ is code]
    if not own:
        return None
    held = [
        (module, name)
        for module in list(sys.modules.values())
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is own[0]
    ]
    return NamedFunction(own[0], tuple(held)) if held else None
