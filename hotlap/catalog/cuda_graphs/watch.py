"""Which function of the user's makes the loss of what the root returned: looked for during one step."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any

NOT_THE_USERS = {"torch", "hotlap", *sys.stdlib_module_names}
MOST_EVENTS = 200_000  # a step that does more in Python than this is not watched to its end
DEEP = 2  # containers in containers


@dataclass(frozen=True)
class NamedFunction:
    """A function, and the modules that know it by a name."""

    function: FunctionType
    held: tuple[tuple[Any, str], ...]


class Watch:
    """Between the root's forward and the backward: the outermost functions that take something to differentiate, which
    what forward returned leads to, and return the same. Python tells of each call, which costs as much as the call: one
    step only.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._open: FrameType | None = None
        self._events = 0
        self._found: list[tuple[Any, dict[str, Any]]] = []

    def begin(self) -> bool:
        """Not where the program, or a debugger, watches calls itself."""
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
        return [one for one in places if one is not None]

    def _noted(self, frame: FrameType, event: str, outcome: Any) -> None:
        self._events += 1
        if self._events > MOST_EVENTS:
            sys.setprofile(None)
        elif event == "call" and self._open is None and self._is_given_one(frame):
            self._open = frame
        elif event == "return" and frame is self._open:
            self._open = None
            found = (frame.f_code, frame.f_globals)
            if found not in self._found and any(one.requires_grad for one in leaves(self._torch, outcome)):
                self._found.append(found)

    def _is_given_one(self, frame: FrameType) -> bool:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in NOT_THE_USERS:
            return False
        code = frame.f_code
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = frame.f_locals if arguments else {}
        given = leaves(self._torch, [values.get(name) for name in arguments])
        return any(one.grad_fn is not None for one in given)


def leaves(torch: Any, value: Any, deep: int = DEEP) -> list[Any]:
    """The tensors in a value, and in the containers it is made of."""
    if isinstance(value, torch.Tensor):
        return [value]
    if deep < 0 or not isinstance(value, tuple | list | dict):
        return []
    return [
        one for each in (value.values() if isinstance(value, dict) else value) for one in leaves(torch, each, deep - 1)
    ]


def _place(code: Any, names: dict[str, Any]) -> NamedFunction | None:
    """None where no module knows it: a method, a function in a function, one that a decorator hides."""
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
