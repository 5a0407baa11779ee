"""What the first steps show about the loop: a backward after each forward and one optimizer, or more."""

from __future__ import annotations

import weakref
from typing import Any

# Positions in torch.autograd.backward(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
RETAIN, CREATE, INPUTS = 2, 3, 5


class Habits:
    def __init__(self) -> None:
        self.why_not: str | None = None
        self.is_several = False  # more than one optimizer, or more than one forward before a backward
        self.scaler = False
        self.steps = 0  # counted since the root became known
        self._counting = False
        self._calls = self._backwards = 0
        self._optimizer: Any = lambda: None

    def _found(self, why: str) -> None:
        self.why_not = self.why_not or why

    def root_known(self) -> None:
        self._counting = True
        self._calls = self._backwards = 0

    def called(self) -> None:
        self._calls += 1

    def backward(self, first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether it is a plain backward, which fills the gradients of all leaves and keeps no graph."""
        self._backwards += 1
        if is_plain_backward(first, args, kwargs):
            return True
        if first is None:
            self._found("torch.autograd.grad is used")
        elif _argument(args, kwargs, INPUTS, "inputs") is not None:
            self._found("backward is called for some inputs only")
        else:
            self._found("backward retains its graph for a second one")
        return False

    def stepped(self, optimizer: Any) -> None:
        self.is_several |= self._optimizer() not in (None, optimizer)
        if self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._counting:
            self.is_several |= self._calls > 1 and self._calls != self._backwards
            self.steps += 0 < self._calls == self._backwards
        self._calls = self._backwards = 0


def is_plain_backward(first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a backward reaches all leaves and keeps no graph. `first` is None for torch.autograd.grad."""
    given = len(args)
    return first is not None and not (
        (args[CREATE] if given > CREATE else kwargs.get("create_graph"))
        or (args[RETAIN] if given > RETAIN else kwargs.get("retain_graph"))
        or (args[INPUTS] if given > INPUTS else kwargs.get("inputs")) is not None
    )


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)
