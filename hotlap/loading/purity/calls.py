"""What a call returns, whatever is called."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, WrapperDescriptorType
from typing import Any

from hotlap.loading.purity import pure_operations
from hotlap.loading.purity.builtin_functions import BUILTINS, is_tensor
from hotlap.loading.purity.created import Bound, Closure, Instance, Super, Transform
from hotlap.loading.purity.frames import Names
from hotlap.loading.purity.library_calls import LibraryCalls, is_known_transform, is_module, is_table_of_items
from hotlap.loading.purity.objects import bases_of_the_program, of_the_program, without_our_layers
from hotlap.loading.purity.plain import CONTAINERS, is_array, is_atom, is_record, is_table, type_name
from hotlap.loading.purity.questions import beginning_of, need_plain
from hotlap.loading.purity.rules import draws_globally, known_reason, rule_of, why_not
from hotlap.loading.purity.seeded_generators import GENERATOR, SEEDED, WITH_GENERATOR, is_seeded, makes_generator
from hotlap.loading.purity.study import Impure
from hotlap.loading.purity.values import NOTHING, Value, alias, container, either, fresh, sequence

UNUSUAL = frozenset("__new__ __getattr__ __getattribute__ __setattr__ __del__".split())
FETCHING = ("__getitem__", "__getitems__", "__len__")


class Calls(LibraryCalls):
    def call_value(self, callee: Value, args: Sequence[Value], kwargs: Names) -> Value:
        if callee.plain and callee.known is not None:
            raise Impure("calls a function that is not known")
        found = [self.call_object(function, args, kwargs) for function in callee.objects]
        for made in callee.made:
            if isinstance(made, Closure):
                found.append(self.run_closure(made, args, kwargs))
            else:
                found.append(self.call_made_method(made, "__call__", args, kwargs))
        return either(found)

    def call_object(self, callee: Any, args: Sequence[Value], kwargs: Names) -> Value:
        self.study.check_time()
        callee = without_our_layers(callee)
        if type(callee) is functools.partial:
            return self._call_partial(callee, args, kwargs)
        if makes_generator(callee, args, kwargs):
            need_plain(*args, *kwargs.values())
            return GENERATOR
        if is_seeded(kwargs.get("generator")) and _takes_generator(callee):
            return self.drawn_from_own(callee, args, {name: kwargs[name] for name in kwargs if name != "generator"})
        if self.study.may_draw and draws_globally(callee):
            return self.drawn(callee, args, kwargs)
        if isinstance(callee, MethodType) and callee.__name__ in FETCHING and is_table_of_items(type(callee.__self__)):
            return self.special(callee.__self__, callee.__name__, args)
        if isinstance(callee, MethodType) and (of_the_program(callee.__func__.__module__) or rule_of(callee) is None):
            return self.call_object(callee.__func__, [Value(objects=(callee.__self__,)), *args], kwargs)
        special = BUILTINS.get(id(callee))
        if callee is sys.modules["torch"].is_tensor:
            special = is_tensor
        if special is not None:
            return special(self, args, kwargs)
        rule = rule_of(callee)
        if rule is not None:
            return self.by_rule(rule, callee, args, kwargs)
        return self._call_by_kind(callee, args, kwargs)

    def _call_partial(self, callee: Any, args: Sequence[Value], kwargs: Names) -> Value:
        for name in ("func", "args", "keywords"):
            self.study.note_attribute(callee, name)
        before = [self.objects.value_of(argument) for argument in callee.args]
        named = {name: self.objects.value_of(argument) for name, argument in callee.keywords.items()}
        return self.call_object(callee.func, [*before, *args], {**named, **kwargs})

    def _call_by_kind(self, callee: Any, args: Sequence[Value], kwargs: Names) -> Value:
        if isinstance(callee, type):
            return self._instance(callee, args, kwargs)
        if isinstance(callee, FunctionType):
            if not of_the_program(callee.__module__) and (why := known_reason(callee)) is not None:
                raise Impure(why)
            return self.follow(callee, args, kwargs)
        if isinstance(callee, MethodDescriptorType | WrapperDescriptorType) and args:
            return self.call_method(args[0], callee.__name__, args[1:], kwargs, None)
        if isinstance(callee, BuiltinFunctionType):
            return self._builtin_method(callee, args, kwargs)
        return self.special(callee, "__call__", args, kwargs)

    def _builtin_method(self, method: Any, args: Sequence[Value], kwargs: Names) -> Value:
        owner = method.__self__
        if owner is None or isinstance(owner, type) or type(owner).__name__ == "module":
            if isinstance(owner, type) and is_atom(owner) and method.__name__ in pure_operations.METHODS:
                need_plain(*args, *kwargs.values())
                return fresh(*args)
            raise Impure(why_not(method))
        value = self.objects.value_of(owner)
        if value.objects:
            raise Impure(why_not(method))
        return self.call_method(value, method.__name__, args, kwargs, None)

    def special(self, target: Any, name: str, args: Sequence[Value], kwargs: Names | None = None) -> Value:
        """Call a special method, which Python looks up in the class."""
        kind = type(target)
        if kind.__name__ == "_Environ":
            raise Impure("reads the environment")
        self.study.note_attribute(target, "__class__")
        if is_module(kind):
            self.note_hooks(target)
        if name == "__call__" and is_known_transform(kind):
            return self.call_transform(target, args)
        if name == "__call__" and type_name(kind) in pure_operations.CALL_EACH:
            return self.call_each(target, args)
        if is_module(kind):
            return self.call_module(target, name, args, kwargs or {})
        if name in FETCHING and is_table_of_items(kind):
            item = self.item_of_table(target, pure_operations.TABLES_OF_ITEMS[type_name(kind)], args)
            return {"__getitem__": item, "__getitems__": container(item), "__len__": fresh()}[name]
        raw = self.objects.member(kind, name)
        if isinstance(raw, FunctionType):
            return self.call_object(MethodType(raw, target), args, kwargs or {})
        if isinstance(target, functools._lru_cache_wrapper):
            raise Impure(f"caches what {getattr(target, '__name__', 'a function')} returns (lru_cache)")
        raise Impure(known_reason(target) or f"uses a {kind.__name__}, which is not known to be pure")

    def call_made_method(self, made: Any, name: str, args: Sequence[Value], kwargs: Names | None = None) -> Value:
        if made is SEEDED:
            return self.method_of_generator(name, args, kwargs or {})
        if isinstance(made, Transform):
            return self.call_created_transform(made, name, args, kwargs or {})
        if isinstance(made, Bound):
            return self.call_object(made.function, [made.owner, *args], kwargs or {})
        if isinstance(made, Super) and name == "__init__" and self.above(made, name) is object.__init__:
            return NOTHING
        return self.call_value(self.made_attribute(made, name), args, kwargs or {})

    # Objects that the code creates

    def _instance(self, kind: type, args: Sequence[Value], kwargs: Names) -> Value:
        values = [*args, *kwargs.values()]
        if issubclass(kind, BaseException):
            if any(isinstance(member, FunctionType | property) for member in _members_of_the_program(kind)):
                raise Impure(f"creates a {kind.__name__}, whose construction is not known to be pure")
            return fresh(*values)
        if is_record(kind):
            return sequence(values) if not kwargs else container(either(values))
        if is_atom(kind) or kind in CONTAINERS or is_array(kind) or is_table(kind):
            return self._plain_instance(kind, values)
        if is_known_transform(kind):
            need_plain(*values)
            in_place = any(value.known is not False for value in (*args[2:], *kwargs.values()))
            return Value(made=(Transform(in_place),))
        if not of_the_program(kind.__module__):
            raise Impure(why_not(kind))
        unusual = {name for base in kind.__mro__[:-1] for name in vars(base)} & UNUSUAL
        if type(kind) is not type or unusual:
            raise Impure(f"creates a {kind.__name__}, whose construction is not known to be pure")
        self.stores += 1
        made = Instance(kind, born=self.stores)
        whole = Value(
            made=(made,), deep=all(value.deep for value in values), steady=all(value.steady for value in values)
        )
        init = self.objects.member(kind, "__init__")
        if dataclasses.is_dataclass(kind) and getattr(getattr(init, "__code__", None), "co_filename", "") == "<string>":
            self._dataclass(made, kind, args, kwargs)
        elif isinstance(init, FunctionType):
            self.call_object(init, [whole, *args], kwargs)
        return whole

    def _plain_instance(self, kind: type, values: Sequence[Value]) -> Value:
        need_plain(*values)
        _refuse_now(values)
        if not is_atom(kind):
            return alias(*values)
        if issubclass(kind, PurePath) and values and all(type(value.known) is str for value in values):
            return self.computed(kind(*(value.known for value in values)))
        return replace(fresh(*values), begins=_beginning_of_path(kind, values))

    def _dataclass(self, made: Instance, kind: type, args: Sequence[Value], kwargs: Names) -> None:
        fields = [member for member in dataclasses.fields(kind) if member.init]
        if any(member.default_factory is not dataclasses.MISSING for member in fields) or hasattr(
            kind, "__post_init__"
        ):
            raise Impure(f"creates a {kind.__name__}, whose construction is not known to be pure")
        for member in fields:
            if member.default is not dataclasses.MISSING:
                made.fields[member.name] = self.objects.value_of(member.default)
        made.fields.update({member.name: value for member, value in zip(fields, args, strict=False)})
        made.fields.update(kwargs)


def _takes_generator(function: Any) -> bool:
    return getattr(function, "__name__", "") in WITH_GENERATOR and draws_globally(function)


def _members_of_the_program(kind: type) -> list[Any]:
    return [member for base in bases_of_the_program(kind) for member in vars(base).values()]


def _refuse_now(values: Sequence[Value]) -> None:
    if any(type(value.known) is str and value.known.lower() in pure_operations.NOW for value in values):
        raise Impure("reads the clock")


def _beginning_of_path(kind: type, values: Sequence[Value]) -> str | None:
    if not issubclass(kind, PurePath) or not values:
        return None
    begins = beginning_of(values[0])
    return begins if len(values) == 1 else begins or None
