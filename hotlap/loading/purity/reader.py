"""Reads the code of functions without running it, statement by statement, tracking what is known of every value.

All paths through the code are followed except those that the state rules out (`if self.augment:` when that is False);
if that state changes, the conclusions no longer hold. Code that is not known to be pure ends the reading, with its
line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

from hotlap.loading.purity.created import Closure, Keywords
from hotlap.loading.purity.frames import Frame, Names
from hotlap.loading.purity.genuine import genuine
from hotlap.loading.purity.objects import of_the_program
from hotlap.loading.purity.questions import refuse_lazy
from hotlap.loading.purity.source import Definition, Unreadable, definition_of
from hotlap.loading.purity.statements import Statements
from hotlap.loading.purity.study import Impure, Study
from hotlap.loading.purity.values import Value, container, either, fresh, sequence

DEEPEST_CALLS = 24


class Reader(Statements):
    def __init__(self, study: Study) -> None:
        super().__init__(study)
        self._results: dict[Any, Value] = {}

    def end(self) -> None:
        """Break the reference cycles, which would keep a dataset alive until garbage collection."""
        for frame in self.all_frames:
            vars(frame).clear()
        for held in (self.frames, self.all_frames, self._results, self.later):
            held.clear()
        self.objects.end()

    def follow(self, function: FunctionType, args: Sequence[Value], kwargs: Names) -> Value:
        """Return the result of calling a Python function."""
        key = (
            function.__code__,
            id(function),
            tuple(argument.key() for argument in args),
            tuple((name, value.key()) for name, value in kwargs.items()),
        )
        if key in self._results:
            return self._results[key]
        stores = self.stores
        found = self._followed(function, args, kwargs)
        if self.stores == stores and not any(value.made for value in (*args, *kwargs.values())):
            self._results[key] = found
        return found

    def _followed(self, function: FunctionType, args: Sequence[Value], kwargs: Names) -> Value:
        self.study.check_time()
        if sum(frame.function.__code__ is function.__code__ for frame in self.frames) > 3:
            raise Impure(f"{function.__qualname__} calls itself")
        if len(self.frames) >= DEEPEST_CALLS:
            raise Impure("its functions call each other too deeply")
        try:
            definition = definition_of(function)
        except Unreadable as why:
            raise Impure(f"calls {function.__qualname__}: {why}") from None
        if function.__code__.co_flags & 0x2A0:  # generators and coroutines
            raise Impure(f"{function.__qualname__} is a generator")
        return self._run(Frame(function, self._bind(function, definition, args, kwargs), definition, None))

    def run_closure(self, closure: Closure, args: Sequence[Value], kwargs: Names) -> Value:
        frame = closure.frame
        names = self._bound_names(closure.definition, args, kwargs, closure.defaults)
        inner = Frame(frame.function, names, closure.definition, frame)
        inner.cells = frame.cells
        return self._run(inner)

    def _run(self, frame: Frame) -> Value:
        self.frames.append(frame)
        self.all_frames.append(frame)
        self.study.depth = len(self.frames)
        in_guard, self.in_guard = self.in_guard, False
        try:
            body = frame.definition.body
            if not isinstance(body, list):
                return self.evaluate(body)
            if self.block(body):
                frame.returned.append(Value(plain=True, known=None))
            return either(frame.returned)
        except Impure as why:
            raise self._placed(why) from None
        finally:
            self.frames.pop()
            self.study.depth = len(self.frames)
            if not frame.captured:
                self.all_frames.remove(frame)
            self.in_guard = in_guard

    def _placed(self, why: Impure) -> Impure:
        if getattr(why, "placed", False):
            return why
        frame = self.frames[-1]
        placed = Impure(f"{Path(frame.function.__code__.co_filename).name}:{frame.line} {why}")
        placed.placed = True  # type: ignore[attr-defined]
        return placed

    def _bind(self, function: FunctionType, definition: Definition, args: Sequence[Value], kwargs: Names) -> Names:
        defaults = [self.objects.value_of(default) for default in function.__defaults__ or ()]
        by_name = {name: self.objects.value_of(default) for name, default in (function.__kwdefaults__ or {}).items()}
        if of_the_program(function.__module__) or not genuine(function):
            for name in ("__defaults__", "__kwdefaults__", "__code__"):
                if getattr(function, name):
                    self.study.note_attribute(function, name)
        return self._bound_names(definition, args, kwargs, (defaults, by_name))

    def _bound_names(
        self, definition: Definition, args: Sequence[Value], kwargs: Names, defaults: tuple[list[Value], Names]
    ) -> Names:
        parameters = definition.args
        positional = [parameter.arg for parameter in (*parameters.posonlyargs, *parameters.args)]
        names: Names = dict(zip(positional[len(positional) - len(defaults[0]) :], defaults[0], strict=False))
        names.update(defaults[1])
        rest = dict(kwargs)
        for value in (*args, *kwargs.values()):
            refuse_lazy(value)
        if any(argument.spread for argument in args[: len(positional)]):
            raise Impure("calls a function with * of a value whose length is not known")
        names.update(zip(positional, args, strict=False))
        for name in (*positional, *(parameter.arg for parameter in parameters.kwonlyargs)):
            if name in rest:
                names[name] = rest.pop(name)
        if parameters.vararg is not None:
            more = args[len(positional) :]
            names[parameters.vararg.arg] = (
                container(either(more)) if any(argument.spread for argument in more) else sequence(more)
            )
        if parameters.kwarg is not None:
            names[parameters.kwarg.arg] = container(either(rest.values())) if rest else fresh()
            names[f"**{parameters.kwarg.arg}"] = Value(made=(Keywords(rest),))
        return names
