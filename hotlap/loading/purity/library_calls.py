"""What calls of library functions and objects return."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from types import FunctionType, MethodType, ModuleType
from typing import Any

from hotlap.loading.purity import pure_operations
from hotlap.loading.purity.builtin_functions import pass_on
from hotlap.loading.purity.created import Transform
from hotlap.loading.purity.frames import Names
from hotlap.loading.purity.genuine import genuine_of
from hotlap.loading.purity.methods import Methods
from hotlap.loading.purity.plain import type_name
from hotlap.loading.purity.pure_operations import Gives
from hotlap.loading.purity.questions import beginning_of, is_given, need_plain, need_read_mode, refuse_object_arrays
from hotlap.loading.purity.rules import is_ordered, opens_unheard, written_by
from hotlap.loading.purity.seeded_generators import GENERATOR, PICKING, require_known
from hotlap.loading.purity.study import Impure
from hotlap.loading.purity.values import UNKNOWN, Value, alias, fresh

_TRUE = Value(plain=True, known=True)


class LibraryCalls(Methods):
    # Functions on the list

    def by_rule(self, rule: Gives, function: Any, args: Sequence[Value], kwargs: Names) -> Value:
        values = [*args, *kwargs.values()]
        pass_on(self, values)
        if not all(argument.own for argument in written_by(function, args, kwargs)):
            raise Impure("writes into an array that outlives the call")
        refuse_object_arrays(values)
        if isinstance(python := inspect.unwrap(function), FunctionType):  # NumPy's dispatcher wraps its own
            self._note_callees(python)
        if getattr(function, "__name__", "") == "File" or rule is Gives.FILE:
            return self._file(function, args, kwargs, values)
        if is_ordered(function):
            self.study.ordered = True
        if rule is Gives.ALIAS or kwargs.get("copy", _TRUE).known is not True:
            return alias(*values, array=_makes_arrays(function))
        if rule is Gives.ORDERED:
            self.study.ordered = True
        if function is os.path.join and args:
            return self._joined(values)
        return fresh(*values, array=_makes_arrays(function))

    def _joined(self, parts: Sequence[Value]) -> Value:
        """Return a path joined of these parts, or how it begins."""
        if all(isinstance(part.known, str | PurePath) for part in parts):
            return self.computed(os.path.join(*(part.known for part in parts)))  # noqa: PTH118
        return replace(fresh(*parts), begins=beginning_of(parts[0]) or None)

    def _note_callees(self, function: FunctionType) -> None:
        """Note what a listed function written in Python looks up by name, since the program may replace it."""
        space = function.__globals__
        names = function.__code__.co_names
        for name in names:
            if name in space and (function.__module__, name) not in pure_operations.FILLED_WHEN_USED:
                self.study.names[id(space), name] = space, name
        for module in (space[name] for name in names if isinstance(space.get(name), ModuleType)):
            for name in names:
                if name in vars(module):
                    self.study.names[id(vars(module)), name] = vars(module), name

    def _file(self, function: Any, args: Sequence[Value], kwargs: Names, values: Sequence[Value]) -> Value:
        self.study.reads_files = True
        if opens_unheard(function):
            self._note_path([*args, *kwargs.values()][0])
        name = getattr(function, "__name__", "")
        pickled = is_given(kwargs.get("allow_pickle")) or kwargs.get("weights_only", _TRUE).known is False
        if name == "load" and str(getattr(function, "__module__", "")).startswith("numpy") and len(args) > 1:
            raise Impure("opens a file that it may write to")
        if name == "load" and pickled:
            raise Impure("loads arbitrary objects from a file")
        if name in ("File", "open"):
            mode = kwargs.get("mode", args[1] if len(args) > 1 else None)
            if name == "File" or getattr(function, "__module__", "") in ("gzip", "bz2", "lzma"):
                need_read_mode(mode)
        if name == "memmap":
            need_read_mode(kwargs.get("mode", args[2] if len(args) > 2 else None), also=("c",), needed=True)
        mapped = kwargs.get("mmap_mode") if name == "load" else None
        if is_given(mapped):
            need_read_mode(mapped, also=("c",))
        is_handle = name == "File" or (mapped is not None and mapped.known == "r")
        path = values[0].known if is_handle and values else None
        return replace(fresh(*values), handle=is_handle, begins=str(path) if isinstance(path, str | PurePath) else None)

    def _note_path(self, path: Value) -> None:
        """Note a path that is opened by compiled code, which raises no audit event that would tell its name."""
        begins = beginning_of(path)
        if begins is None:
            raise Impure("opens a file by a computed name, so that changes to it would go unnoticed")
        if path.known is not UNKNOWN:
            self.study.texts.add(begins)
        elif begins:
            self.study.folders.add(begins)

    # Random numbers

    def drawn(self, function: Any, args: Sequence[Value], kwargs: Names) -> Value:
        """Draw from a stream that is seeded in each worker; a shuffle writes into its argument."""
        if is_given(kwargs.get("generator")):
            raise Impure("draws from a generator of its own")
        need_plain(*args, *kwargs.values())
        if not all(argument.own for argument in written_by(function, args, kwargs)):
            raise Impure("writes into an array that outlives the call")
        if function.__name__ == "shuffle":
            if not args[0].own:
                raise Impure("shuffles a list that outlives the call")
            self.put_into_a_container()
        return alias(*args, *kwargs.values()).unsteady()

    def drawn_from_own(self, function: Any, args: Sequence[Value], kwargs: Names) -> Value:
        """Draw from a generator that the call itself has created."""
        need_plain(*args, *kwargs.values())
        if not all(argument.own for argument in written_by(function, args, kwargs)):
            raise Impure("writes into an array that outlives the call")
        return fresh(*args, *kwargs.values(), array=True).unsteady()

    def method_of_generator(self, name: str, args: Sequence[Value], kwargs: Names) -> Value:
        require_known(name, args, kwargs)
        need_plain(*args, *kwargs.values())
        if name in ("seed", "manual_seed"):
            return GENERATOR
        if name == "shuffle":
            if not args or not args[0].own:
                raise Impure("shuffles a list that outlives the call")
            self.put_into_a_container()
            return Value(plain=True, known=None)
        values = [*args, *kwargs.values()]
        return (alias(*values) if name in PICKING else fresh(*values)).unsteady()

    # Callable objects

    def call_module(self, module: Any, name: str, args: Sequence[Value], kwargs: Names) -> Value:
        kind = type(module)
        forward = self.objects.member(kind, "forward")
        self.study.note_attribute(module, "forward")
        if "forward" in vars(module):
            raise Impure(f"runs a {kind.__name__} whose forward was replaced")
        if name == "__call__" and isinstance(forward, FunctionType) and not _holds(module) and not _hooked():
            return self.call_object(MethodType(forward, module), args, kwargs)
        raise Impure(f"runs a model ({kind.__name__}), which may be trained or draw random numbers")

    def note_hooks(self, module: Any) -> None:
        """Note the containers of hooks, to see if the program adds one later."""
        everywhere = vars(sys.modules["torch.nn.modules.module"])
        for held in (vars(module), everywhere):
            for name, hooks in held.items():
                if name.endswith("_hooks") and isinstance(hooks, dict):
                    self.study.containers[id(hooks)] = hooks

    def item_of_table(self, table: Any, attributes: Sequence[str], args: Sequence[Value]) -> Value:
        """Return a row as a dictionary, or the result of the dataset's own transform."""
        for name in attributes[:-1]:
            self.study.note_attribute(table, name)
        options = self.load_attribute(Value(objects=(table,)), attributes[-1])
        row = replace(fresh(*args), element=fresh(*args))
        transform = options.known.get("transform") if type(options.known) is dict else None
        return row if transform is None else self.call_value(self.objects.value_of(transform), [row], {})

    def call_transform(self, transform: Any, args: Sequence[Value]) -> Value:
        """Call a library object whose result depends on its attributes and arguments alone."""
        for name in vars(transform):
            need_plain(self.load_attribute(Value(objects=(transform,)), name)) if name[0] != "_" else None
        if any(vars(transform).get(name) for name in vars(transform) if name.endswith("_hooks")):
            raise Impure(f"runs hooks of a {type(transform).__name__}")
        need_plain(*args)
        if getattr(transform, "inplace", False) and not all(argument.own for argument in args):
            raise Impure("writes into a tensor that outlives the call")
        self.study.ordered = True
        return alias(*args, array=False)

    def call_created_transform(self, made: Transform, name: str, args: Sequence[Value], kwargs: Names) -> Value:
        values = [*args, *kwargs.values()]
        need_plain(*values)
        if name != "__call__":
            raise Impure(f"calls .{name}() of a transform that it creates")
        if made.in_place and not all(value.own for value in values):
            raise Impure("writes into a tensor that outlives the call")
        self.study.ordered = True
        return alias(*values, array=False)

    def call_each(self, transform: Any, args: Sequence[Value]) -> Value:
        steps = self.load_attribute(Value(objects=(transform,)), "transforms")
        value = args[0]
        if type(steps.known) not in (list, tuple):
            raise Impure(f"uses a {type(transform).__name__} whose steps are not known")
        for step in steps.known:
            value = self.call_value(self.objects.value_of(step), [value], {})
        return value


def _makes_arrays(function: Any) -> bool:
    return str(getattr(function, "__module__", "") or "").partition(".")[0] in ("torch", "numpy")


def _code_of_call(kind: type) -> Any:
    """Return the function that calling an object runs, for a torch module or a plain class."""
    return getattr(kind, "forward", None) or getattr(kind, "__call__", None)  # noqa: B004 looked up in the class


def is_known_transform(kind: type) -> bool:
    return type_name(kind) in pure_operations.CALLED and genuine_of("torchvision", _code_of_call(kind))


def is_table_of_items(kind: type) -> bool:
    return type_name(kind) in pure_operations.TABLES_OF_ITEMS


def is_module(kind: type) -> bool:
    return any(base.__module__ == "torch.nn.modules.module" for base in kind.__mro__)


def _hooked() -> bool:
    """Return whether global hooks run around the calls of all modules."""
    module = sys.modules["torch.nn.modules.module"]
    return any(getattr(module, name, None) for name in ("_global_forward_hooks", "_global_forward_pre_hooks"))


def _holds(module: Any) -> bool:
    """Return whether a torch module has parameters, hooks or submodules, which makes it a model."""
    held = vars(module)
    return any(held.get(name) for name in held if name.startswith("_") and name not in ("_non_persistent_buffers_set",))
