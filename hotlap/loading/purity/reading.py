"""What reading code has in common, whatever is read: the study, the objects, the calls under way.

A reader is made in layers, each in a file of its own and each using the ones below: Reading, Changes, Lookups, Methods,
LibraryCalls, Calls, Expressions, Statements, Reader. The abstract methods are those that lower layers use as well.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import FunctionType, MethodType
from typing import Any

from hotlap.loading.purity.created import Closure, Instance
from hotlap.loading.purity.frames import Frame, Names
from hotlap.loading.purity.objects import ABSENT, Objects, of_the_program
from hotlap.loading.purity.plain import CONTAINERS, is_atom
from hotlap.loading.purity.questions import INERT
from hotlap.loading.purity.study import Impure, Study
from hotlap.loading.purity.values import UNKNOWN, Value


class Reading(ABC):
    def __init__(self, study: Study) -> None:
        self.study, self.objects = study, Objects(study)
        self.frames: list[Frame] = []
        self.all_frames: list[Frame] = []  # including those of functions that have returned, which closures hold

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def computed(self, text: Any) -> Value:
        """Return a text or path computed of known ones, and keep it alive: values are compared by identity."""
        self.study.alive.append(text)
        return Value(plain=True, known=text)

    def truth(self, value: Value) -> bool | None:
        """Return the truth of a condition if the state decides it, else None."""
        for made in value.made:
            if isinstance(made, Instance) and any(hasattr(made.kind, name) for name in ("__bool__", "__len__")):
                raise Impure(f"tests the truth of a {made.kind.__name__} that it creates")
        if value.plain and not value.objects and not value.made:
            candidate = value.known
            if candidate is UNKNOWN:
                return None
            small = is_atom(type(candidate)) or type(candidate) in CONTAINERS
            return bool(candidate) if small else None
        decided = bool(value.objects) and not value.plain and not value.made
        for candidate in value.objects:
            kind = type(candidate)
            if isinstance(candidate, INERT):
                continue
            for name in ("__bool__", "__len__"):
                raw = self.objects.member(kind, name)
                if isinstance(raw, FunctionType) and of_the_program(raw.__module__):
                    self.call_object(MethodType(raw, candidate), [], {})
                decided = decided and raw is ABSENT
        return True if decided else None

    @abstractmethod
    def special(self, target: Any, name: str, args: Sequence[Value], kwargs: Names | None = None) -> Value:
        """Call a special method, which Python looks up in the class."""

    @abstractmethod
    def call_value(self, callee: Value, args: Sequence[Value], kwargs: Names) -> Value: ...

    @abstractmethod
    def call_object(self, callee: Any, args: Sequence[Value], kwargs: Names) -> Value: ...

    @abstractmethod
    def call_made_method(self, made: Any, name: str, args: Sequence[Value], kwargs: Names | None = None) -> Value: ...

    @abstractmethod
    def follow(self, function: FunctionType, args: Sequence[Value], kwargs: Names) -> Value:
        """Return the result of calling a Python function."""

    @abstractmethod
    def run_closure(self, closure: Closure, args: Sequence[Value], kwargs: Names) -> Value: ...

    @abstractmethod
    def assign(self, target: ast.expr, value: Value) -> None: ...
