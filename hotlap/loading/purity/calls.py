"""What a call returns: of a listed function, of a method of a plain value, or of code that is read in turn."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import inspect
import sys
from abc import ABCMeta
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from hotlap.loading.purity import pure_operations
from hotlap.loading.purity.genuine import genuine_of
from hotlap.loading.purity.library_types import is_replaced, library_types
from hotlap.loading.purity.objects import ABSENT, MissingAttribute, Objects, of_the_program, without_our_layers
from hotlap.loading.purity.plain import CONTAINERS, is_array, is_atom, is_record, is_table, type_name
from hotlap.loading.purity.pure_operations import Gives
from hotlap.loading.purity.rules import (
    draws_globally,
    is_ordered,
    known_reason,
    rule_of,
    why_not,
    written_by,
    written_by_method,
)
from hotlap.loading.purity.seeded_generators import (
    FILLING,
    GENERATOR,
    PICKING,
    SEEDED,
    WITH_GENERATOR,
    is_seeded,
    makes_generator,
    require_known,
)
from hotlap.loading.purity.study import Impure, Study
from hotlap.loading.purity.values import NOTHING, UNKNOWN, Value, alias, container, either, fresh, sequence

UNUSUAL = frozenset("__new__ __getattr__ __getattribute__ __setattr__ __del__".split())
READ_MODES = frozenset("r rb rt br".split())
INERT = (type, FunctionType, BuiltinFunctionType, MethodType)
FETCHING = ("__getitem__", "__getitems__", "__len__")
READING_METHODS = frozenset("clone read read_bytes read_text".split())
COPYING_METHODS = frozenset("astype tolist copy".split())
CONVERSIONS = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "bool": "bool",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
}
LISTING_METHODS = frozenset("glob rglob iterdir".split())
FILE_METHODS = frozenset("read_text read_bytes resolve".split()) | LISTING_METHODS
Names = dict[str, Value]


class Closure:
    """A function that the code being read defines."""

    def __init__(self, definition: Any, frame: Any, defaults: tuple[list[Value], Names]) -> None:
        self.definition, self.frame, self.defaults = definition, frame, defaults


@dataclass(eq=False)
class Instance:
    """An object of one of the program's classes, created by the code being read."""

    kind: type
    fields: Names = field(default_factory=dict)
    version: int = 0  # grows as more becomes known of a field
    born: int = 0  # the count of stores at its creation


@dataclass(frozen=True)
class Transform:
    """A library transform that the code creates and calls; what it does depends on its arguments alone."""

    in_place: bool


@dataclass(eq=False)
class Super:
    kind: type
    owner: Value


@dataclass(eq=False)
class Keywords:
    """The keyword arguments that a ** parameter received."""

    given: Names


class Calls:
    study: Study
    objects: Objects
    frames: list[Any]
    _stores: int

    # Implemented by the reader

    follow: Callable[..., Value]
    run_closure: Callable[..., Value]
    evaluate: Callable[[ast.expr], Value]
    iterated: Callable[[Value], Value]
    load_attribute: Callable[[Value, str], Value]
    subscript: Callable[[Value, Value], Value]
    need_own: Callable[[Value, ast.expr], None]
    _mangled: Callable[[str], str]
    put_into_a_container: Callable[..., None]
    repeated: Callable[[Callable[[], Value]], Value]

    # Calls as they are written

    def _Call(self, node: ast.Call) -> Value:  # noqa: N802 named after its node
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return self._super()
        loaded = len(self.study.loads)
        args, kwargs = self._arguments(node)
        if isinstance(node.func, ast.Attribute):
            loaded = len(self.study.loads)
            owner = self.evaluate(node.func.value)
            if node.func.attr in FORM and is_direct(node.func.value):
                self.study.looked_up(owner, loaded)
            return self.call_method(owner, self._mangled(node.func.attr), args, kwargs, node.func.value)
        callee = self.evaluate(node.func)
        if callee.objects == (len,) and len(args) == 1 and is_direct(node.args[0]):
            self.study.looked_up(args[0], loaded)
        return self.call_value(callee, args, kwargs)

    def _arguments(self, node: ast.Call) -> tuple[list[Value], Names]:
        args: list[Value] = []
        for argument in node.args:
            value = self.evaluate(argument)
            if not isinstance(argument, ast.Starred):
                args.append(value)
            elif value.items is not None:
                args.extend(value.items)
            elif type(value.known) in (list, tuple):
                args.extend(map(self.objects.value_of, value.known))
            else:
                args.append(replace(self.iterated(value), known=UNKNOWN, spread=True))
        kwargs: Names = {}
        for keyword in node.keywords:
            if keyword.arg is not None:
                kwargs[keyword.arg] = self.evaluate(keyword.value)
            else:
                kwargs.update(self._spread(keyword.value))
        return args, kwargs

    def _spread(self, node: ast.expr) -> Names:
        given = self.frames[-1].names.get(f"**{node.id}") if isinstance(node, ast.Name) else None
        if given is not None:
            return dict(given.made[0].given)
        value = self.evaluate(node)
        if type(value.known) is dict and all(type(key) is str for key in value.known):
            self.study.containers[id(value.known)] = value.known
            return {key: self.objects.value_of(element) for key, element in value.known.items()}
        raise Impure("calls a function with ** of a value that is not known")

    def _super(self) -> Value:
        frame = self.frames[-1]
        if "__class__" not in frame.cells:
            raise Impure("uses super() where its class is not known")
        first = frame.definition.args.args[0].arg
        return Value(made=(Super(frame.cells["__class__"].cell_contents, frame.names[first]),))

    # Calls of values

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
            self.need_plain(*args, *kwargs.values())
            return GENERATOR
        if is_seeded(kwargs.get("generator")) and _takes_generator(callee):
            return self._drawn_from_own(callee, args, {name: kwargs[name] for name in kwargs if name != "generator"})
        if self.study.may_draw and draws_globally(callee):
            return self._drawn(callee, args, kwargs)
        if isinstance(callee, MethodType) and callee.__name__ in FETCHING and _is_table_of_items(type(callee.__self__)):
            return self.special(callee.__self__, callee.__name__, args)
        if isinstance(callee, MethodType) and (of_the_program(callee.__func__.__module__) or rule_of(callee) is None):
            return self.call_object(callee.__func__, [Value(objects=(callee.__self__,)), *args], kwargs)
        special = _BUILTINS.get(id(callee))
        if callee is sys.modules["torch"].is_tensor:
            special = _is_tensor
        if special is not None:
            return special(self, args, kwargs)
        rule = rule_of(callee)
        if rule is not None:
            return self._by_rule(rule, callee, args, kwargs)
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

    def _drawn(self, function: Any, args: Sequence[Value], kwargs: Names) -> Value:
        """Draw from a stream that is seeded in each worker; a shuffle writes into its argument."""
        if _given(kwargs.get("generator")):
            raise Impure("draws from a generator of its own")
        self.need_plain(*args, *kwargs.values())
        if not all(argument.own for argument in written_by(function, args, kwargs)):
            raise Impure("writes into an array that outlives the call")
        if function.__name__ == "shuffle":
            if not args[0].own:
                raise Impure("shuffles a list that outlives the call")
            self.put_into_a_container()
        return alias(*args, *kwargs.values()).unsteady()

    def _drawn_from_own(self, function: Any, args: Sequence[Value], kwargs: Names) -> Value:
        """Draw from a generator that the call itself has created."""
        self.need_plain(*args, *kwargs.values())
        if not all(argument.own for argument in written_by(function, args, kwargs)):
            raise Impure("writes into an array that outlives the call")
        return fresh(*args, *kwargs.values(), array=True).unsteady()

    def _method_of_generator(self, name: str, args: Sequence[Value], kwargs: Names) -> Value:
        require_known(name, args, kwargs)
        self.need_plain(*args, *kwargs.values())
        if name in ("seed", "manual_seed"):
            return GENERATOR
        if name == "shuffle":
            if not args or not args[0].own:
                raise Impure("shuffles a list that outlives the call")
            self.put_into_a_container()
            return Value(plain=True, known=None)
        values = [*args, *kwargs.values()]
        return (alias(*values) if name in PICKING else fresh(*values)).unsteady()

    def _builtin_method(self, method: Any, args: Sequence[Value], kwargs: Names) -> Value:
        owner = method.__self__
        if owner is None or isinstance(owner, type) or type(owner).__name__ == "module":
            if isinstance(owner, type) and is_atom(owner) and method.__name__ in pure_operations.METHODS:
                self.need_plain(*args, *kwargs.values())
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
        if _is_module(kind):
            self._note_hooks(target)
        if name == "__call__" and _is_known_transform(kind):
            return self._called(target, args)
        if name == "__call__" and type_name(kind) in pure_operations.CALL_EACH:
            return self._call_each(target, args)
        if _is_module(kind):
            return self._call_module(target, name, args, kwargs or {})
        if name in FETCHING and _is_table_of_items(kind):
            item = self._item_of_table(target, pure_operations.TABLES_OF_ITEMS[type_name(kind)], args)
            return {"__getitem__": item, "__getitems__": container(item), "__len__": fresh()}[name]
        raw = self.objects._member(kind, name)
        if isinstance(raw, FunctionType):
            return self.call_object(MethodType(raw, target), args, kwargs or {})
        if isinstance(target, functools._lru_cache_wrapper):
            raise Impure(f"caches what {getattr(target, '__name__', 'a function')} returns (lru_cache)")
        raise Impure(known_reason(target) or f"uses a {kind.__name__}, which is not known to be pure")

    def _call_module(self, module: Any, name: str, args: Sequence[Value], kwargs: Names) -> Value:
        kind = type(module)
        forward = self.objects._member(kind, "forward")
        self.study.note_attribute(module, "forward")
        if "forward" in vars(module):
            raise Impure(f"runs a {kind.__name__} whose forward was replaced")
        if name == "__call__" and isinstance(forward, FunctionType) and not _holds(module) and not _hooked():
            return self.call_object(MethodType(forward, module), args, kwargs)
        raise Impure(f"runs a model ({kind.__name__}), which may be trained or draw random numbers")

    def _note_hooks(self, module: Any) -> None:
        """Note the containers of hooks, to see if the program adds one later."""
        everywhere = vars(sys.modules["torch.nn.modules.module"])
        for held in (vars(module), everywhere):
            for name, hooks in held.items():
                if name.endswith("_hooks") and isinstance(hooks, dict):
                    self.study.containers[id(hooks)] = hooks

    def _item_of_table(self, table: Any, attributes: Sequence[str], args: Sequence[Value]) -> Value:
        """Return a row as a dictionary, or the result of the dataset's own transform."""
        for name in attributes[:-1]:
            self.study.note_attribute(table, name)
        options = self.load_attribute(Value(objects=(table,)), attributes[-1])
        row = replace(fresh(*args), element=fresh(*args))
        transform = options.known.get("transform") if type(options.known) is dict else None
        return row if transform is None else self.call_value(self.objects.value_of(transform), [row], {})

    def _called(self, transform: Any, args: Sequence[Value]) -> Value:
        """Call a library object whose result depends on its attributes and arguments alone."""
        for name in vars(transform):
            self.need_plain(self.load_attribute(Value(objects=(transform,)), name)) if name[0] != "_" else None
        if any(vars(transform).get(name) for name in vars(transform) if name.endswith("_hooks")):
            raise Impure(f"runs hooks of a {type(transform).__name__}")
        self.need_plain(*args)
        if getattr(transform, "inplace", False) and not all(argument.own for argument in args):
            raise Impure("writes into a tensor that outlives the call")
        self.study.ordered = True
        return alias(*args, array=False)

    def _transformed(self, made: Transform, name: str, args: Sequence[Value], kwargs: Names) -> Value:
        values = [*args, *kwargs.values()]
        self.need_plain(*values)
        if name != "__call__":
            raise Impure(f"calls .{name}() of a transform that it creates")
        if made.in_place and not all(value.own for value in values):
            raise Impure("writes into a tensor that outlives the call")
        self.study.ordered = True
        return alias(*values, array=False)

    def _call_each(self, transform: Any, args: Sequence[Value]) -> Value:
        steps = self.load_attribute(Value(objects=(transform,)), "transforms")
        value = args[0]
        if type(steps.known) not in (list, tuple):
            raise Impure(f"uses a {type(transform).__name__} whose steps are not known")
        for step in steps.known:
            value = self.call_value(self.objects.value_of(step), [value], {})
        return value

    # Rules of the list

    def _by_rule(self, rule: Gives, function: Any, args: Sequence[Value], kwargs: Names) -> Value:
        values = [*args, *kwargs.values()]
        self._call_back([value for value in values if _is_callable(value)])
        self.need_plain(*(value for value in values if not _is_callable(value)))
        if not all(argument.own for argument in written_by(function, args, kwargs)):
            raise Impure("writes into an array that outlives the call")
        self._refuse_object_arrays(values)
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
        return fresh(*values, array=_makes_arrays(function))

    def _note_callees(self, function: FunctionType) -> None:
        """Note what a listed function written in Python looks up by name, since the program may replace it."""
        space = function.__globals__
        names = function.__code__.co_names
        for name in names:
            if name in space:
                self.study.names[id(space), name] = space, name
        for module in (space[name] for name in names if isinstance(space.get(name), ModuleType)):
            for name in names:
                if name in vars(module):
                    self.study.names[id(vars(module)), name] = vars(module), name

    def _refuse_object_arrays(self, values: Sequence[Value]) -> None:
        """Raise Impure if an array of objects is made, since its elements are not copied."""
        for value in values:
            by_name = isinstance(value.known, str) and value.known in ("O", "object")
            by_type = not value.array and getattr(value.known, "hasobject", None) is True
            if by_name or by_type or any(kind is object for kind in value.objects):
                raise Impure("creates an array of objects")

    def _file(self, function: Any, args: Sequence[Value], kwargs: Names, values: Sequence[Value]) -> Value:
        self.study.reads_files = True
        name = getattr(function, "__name__", "")
        pickled = _given(kwargs.get("allow_pickle")) or kwargs.get("weights_only", _TRUE).known is False
        if name == "load" and str(getattr(function, "__module__", "")).startswith("numpy") and len(args) > 1:
            raise Impure("opens a file that it may write to")
        if name == "load" and pickled:
            raise Impure("loads arbitrary objects from a file")
        if name in ("File", "open"):
            mode = kwargs.get("mode", args[1] if len(args) > 1 else None)
            if name == "File" or getattr(function, "__module__", "") in ("gzip", "bz2", "lzma"):
                self._need_reading(mode)
        if name == "memmap":
            self._need_reading(kwargs.get("mode", args[2] if len(args) > 2 else None), also=("c",), needed=True)
        mapped = kwargs.get("mmap_mode") if name == "load" else None
        if _given(mapped):
            self._need_reading(mapped, also=("c",))
        return replace(fresh(*values), handle=name == "File" or (mapped is not None and mapped.known == "r"))

    def _need_reading(self, mode: Value | None, also: tuple[str, ...] = (), needed: bool = False) -> None:
        if mode is None and not needed:
            return
        if mode is None or mode.known not in (*READ_MODES, *also):
            raise Impure("opens a file that it may write to")

    def _call_back(self, functions: Sequence[Value]) -> None:
        """Read functions that a library calls back with plain values."""
        for function in functions:
            if function.objects and all(id(f) in _BUILTINS or rule_of(f) is not None for f in function.objects):
                continue
            for kind in function.objects:
                if isinstance(kind, type) and of_the_program(kind.__module__):
                    raise Impure(f"passes on the class {kind.__name__}, and what is done with it is not known")
            self.repeated(functools.partial(self.call_value, function, [alias_of_unknown()] * _arity(function), {}))

    # Methods

    def call_method(
        self, owner: Value, name: str, args: Sequence[Value], kwargs: Names, node: ast.expr | None
    ) -> Value:
        found = []
        if owner.plain and (owner.known is not None or owner.items is not None):
            found.append(self._plain_method(owner, name, args, kwargs, node))
        missing: str | None = None  # not the error itself, which would form a cycle with its frames
        for holder in owner.objects:
            try:
                found.append(self._object_method(holder, name, args, kwargs))
            except MissingAttribute as error:
                missing = str(error)
        for made in owner.made:
            found.append(self.call_made_method(made, name, args, kwargs))
        if not found and missing is not None:
            raise MissingAttribute(missing)
        return either(found)

    def _object_method(self, holder: Any, name: str, args: Sequence[Value], kwargs: Names) -> Value:
        if type(holder).__name__ == "_Environ":
            raise Impure("reads the environment")
        if (
            isinstance(holder, type)
            and is_atom(holder)
            and name in pure_operations.METHODS
            and not issubclass(holder, Enum)
        ):
            member = getattr(holder, name, None)
            if isinstance(member, BuiltinFunctionType | MethodDescriptorType):
                return self.call_object(member, args, kwargs)
        return self.call_value(self.load_attribute(Value(objects=(holder,)), name), args, kwargs)

    def _plain_method(
        self, owner: Value, name: str, args: Sequence[Value], kwargs: Names, node: ast.expr | None
    ) -> Value:
        values = [*args, *kwargs.values()]
        if name == "__getitem__" and args:
            return self.subscript(owner, args[0])
        if name in ("items", "values", "keys") and not args:
            return self._of_mapping(owner, name)
        functions = [value for value in values if _is_callable(value)] if name in pure_operations.CALLBACKS else []
        if functions:
            self._call_back(functions)
        elif name in FILLING and is_seeded(kwargs.get("generator")):
            given = [*args, *(value for key, value in kwargs.items() if key != "generator")]
            return self._writing(owner, name, given, node, from_own=True).unsteady()
        elif (name in pure_operations.WRITES or _in_place(name)) and not _resizes_image(owner, name):
            return self._writing(owner, name, values, node)
        elif name not in pure_operations.METHODS:
            raise Impure(_why_no_method(name))
        elif _may_be_of_another_type(owner, name, args):
            raise Impure(f"calls .{name}() of a value that may be a deque or a path, where it is not pure")
        self._note_library_methods(name)
        self.study.ordered |= name in pure_operations.ORDERED_METHODS
        self.study.reads_files |= name in FILE_METHODS
        self._need_no_writing(owner, name, args, kwargs)
        if name == "get" and (owner.element is not None or type(owner.known) is dict):
            self.need_plain(*args[:1])
            return either(
                [self.objects.element_of(owner, args[0] if args else None), *args[1:], Value(plain=True, known=None)]
            )
        self.need_plain(owner, *(value for value in values if value not in functions))
        return self._given_by_method(owner, name, values, kwargs)

    def _note_library_methods(self, name: str) -> None:
        """Note the method of each type among values whose methods a program can replace; raise if it has."""
        for kind in library_types():
            if is_replaced(kind, name):
                raise Impure(f"calls .{name}(), which the program has replaced in {kind.__name__}")
            self.study.names[id(kind), name] = vars(kind), name  # also where it is missing: it may be added

    def _need_no_writing(self, owner: Value, name: str, args: Sequence[Value], kwargs: Names) -> None:
        if _given(kwargs.get("inplace")) or not all(argument.own for argument in written_by_method(name, args, kwargs)):
            raise Impure(f"writes into a value with .{name}()")
        if name in pure_operations.OF_FILES and not owner.own:
            raise Impure(f"reads a file that outlives the call with .{name}()")
        self._refuse_object_arrays([*args, *kwargs.values()])

    def _given_by_method(self, owner: Value, name: str, values: Sequence[Value], kwargs: Names) -> Value:
        """Return new memory if that is certain, else a possible alias of the method's object."""
        copies = "copy" not in kwargs
        if name in LISTING_METHODS:
            return container(fresh(owner, *values))
        if name in pure_operations.KEEP_A_NUMBER and (owner.array or name not in ("item", "tolist")):
            return fresh(owner, *values)
        if name in READING_METHODS or (owner.array and name in COPYING_METHODS and copies):
            return fresh(owner, *values, array=owner.array)
        if copies and owner.array and _changes_dtype(owner, name, values):
            return fresh(owner, *values, array=True)
        return replace(alias(owner, *values), array=owner.array)

    def _of_mapping(self, owner: Value, name: str) -> Value:
        if type(owner.known) in (dict, OrderedDict):
            values = either(self.objects.value_of(held) for held in owner.known.values()) if owner.element else None
            element = values or self.objects.element_of(owner, Value(plain=True))
            keys = Value(plain=True)
        else:
            element, keys = self.objects.element_of(owner), Value(plain=True, steady=owner.steady)
        if name == "items":
            return container(sequence([keys, element]))
        return container(keys if name == "keys" else element)

    def _writing(
        self, owner: Value, name: str, values: Sequence[Value], node: ast.expr | None, *, from_own: bool = False
    ) -> Value:
        self.need_plain(owner)
        if owner.array and name in pure_operations.OF_CONTAINERS:
            raise Impure(f"writes into an element of an array with .{name}()")
        may_draw = from_own or (self.study.may_draw and name[:5] not in ("share", "pin_m"))
        if name in pure_operations.NOT_IN_PLACE and not may_draw:
            raise Impure(_why_no_method(name))
        if not owner.own:
            what = "a value" if node is None else ast.unparse(node)
            raise Impure(f"writes into {what}, which outlives the call, with .{name}()")
        self._call_back([value for value in values if _is_callable(value)])
        self.need_plain(*(value for value in values if not _is_callable(value)))
        if not owner.array:
            self.put_into_a_container(*values)
        return replace(alias(owner, *values), array=owner.array)

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
            self.need_plain(*values)
            _refuse_now(values)
            return alias(*values) if not is_atom(kind) else fresh(*values)
        if _is_known_transform(kind):
            self.need_plain(*values)
            in_place = any(value.known is not False for value in (*args[2:], *kwargs.values()))
            return Value(made=(Transform(in_place),))
        if not of_the_program(kind.__module__):
            raise Impure(why_not(kind))
        unusual = {name for base in kind.__mro__[:-1] for name in vars(base)} & UNUSUAL
        if type(kind) is not type or unusual:
            raise Impure(f"creates a {kind.__name__}, whose construction is not known to be pure")
        self._stores += 1
        made = Instance(kind, born=self._stores)
        whole = Value(
            made=(made,), deep=all(value.deep for value in values), steady=all(value.steady for value in values)
        )
        init = self.objects._member(kind, "__init__")
        if dataclasses.is_dataclass(kind) and getattr(getattr(init, "__code__", None), "co_filename", "") == "<string>":
            self._dataclass(made, kind, args, kwargs)
        elif isinstance(init, FunctionType):
            self.call_object(init, [whole, *args], kwargs)
        return whole

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

    def made_attribute(self, made: Any, name: str) -> Value:
        if isinstance(made, Instance):
            if name in made.fields:
                return made.fields[name]
            raw = self.objects._member(made.kind, name)
            if isinstance(raw, FunctionType):
                return Value(made=(_Bound(made, raw),))
            if isinstance(raw, property) and raw.fget is not None:
                return self.call_object(raw.fget, [Value(made=(made,))], {})
            if isinstance(raw, staticmethod | classmethod) or raw is None:
                raise Impure(f"uses {made.kind.__name__}.{name}")
            return self.objects._of_class(made.kind, name)
        if isinstance(made, Super):
            return Value(made=(_Bound(made.owner, self._above(made, name)),))
        raise Impure(f"uses an attribute of a {'generator' if made is SEEDED else 'function'} that it creates")

    def _above(self, proxy: Super, name: str) -> Any:
        owner = proxy.owner.objects[0] if proxy.owner.objects else proxy.owner.made[0]
        order = (owner.kind if isinstance(owner, Instance) else type(owner)).__mro__
        for base in order[order.index(proxy.kind) + 1 :]:
            if of_the_program(base.__module__):
                self.study.names[id(base), name] = vars(base), name  # also where it is missing: it may be added
            if name in vars(base):
                return vars(base)[name]
        raise MissingAttribute(name)

    def call_made_method(self, made: Any, name: str, args: Sequence[Value], kwargs: Names | None = None) -> Value:
        if made is SEEDED:
            return self._method_of_generator(name, args, kwargs or {})
        if isinstance(made, Transform):
            return self._transformed(made, name, args, kwargs or {})
        if isinstance(made, _Bound):
            owner = made.owner if isinstance(made.owner, Value) else Value(made=(made.owner,))
            return self.call_object(made.function, [owner, *args], kwargs or {})
        if isinstance(made, Super) and name == "__init__" and self._above(made, name) is object.__init__:
            return NOTHING
        return self.call_value(self.made_attribute(made, name), args, kwargs or {})

    def length(self, value: Value) -> Value:
        for candidate in value.objects:
            self.special(candidate, "__len__", [])
        for made in value.made:
            self.call_made_method(made, "__len__", [])
        return fresh(value)

    def values_of_mapping(self, value: Value) -> Value:
        """Return the values of a dictionary, or of pairs that make one."""
        self.need_plain(value)
        element = self.iterated(value)
        inner = [self.iterated(element)] if element.items is not None or element.element is not None else [element]
        if value.known is UNKNOWN or isinstance(value.known, dict):
            inner.append(self.objects.element_of(value, Value(plain=True)))
        else:
            inner.append(alias(value))
        return replace(either(inner), known=UNKNOWN)

    def iterated_object(self, iterable: Any) -> Value:
        raise Impure(f"iterates over a {type(iterable).__name__}")

    # Questions about values

    def need_plain(self, *values: Value) -> None:
        for value in values:
            for candidate in value.objects:
                if not isinstance(candidate, type):
                    raise Impure(f"passes on a {type(candidate).__name__}, and what is done with it is not known")
                if of_the_program(candidate.__module__) and not issubclass(candidate, BaseException):
                    raise Impure(f"passes on the class {candidate.__name__}, and what is done with it is not known")
            if any(not isinstance(made, Instance) for made in value.made):
                raise Impure("passes on a function, and what is done with it is not known")
            if value.made:
                raise Impure("passes on an object that it creates")
            self.need_plain(*value.parts())

    def need_comparable(self, value: Value) -> None:
        for candidate in value.objects:
            if not equal_to_itself_alone(candidate) and not isinstance(candidate, INERT):
                raise Impure(f"compares a {type(candidate).__name__}, which customises comparison")
        if value.made:
            raise Impure("compares an object that it creates")
        if value.plain:
            self.need_plain(replace(value, objects=()))

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
                raw = self.objects._member(kind, name)
                if isinstance(raw, FunctionType) and of_the_program(raw.__module__):
                    self.call_object(MethodType(raw, candidate), [], {})
                decided = decided and raw is ABSENT
        return True if decided else None

    def is_same(self, left: Value, right: Value) -> bool | None:
        for value, reference in ((left, right), (right, left)):
            if reference.known is None and not reference.objects and not reference.made:
                if value.known is None and not value.objects and not value.made:
                    return True
                can_be = value.plain and (value.known is UNKNOWN and value.items is None)
                return None if can_be else (False if value.known is not None else None)
        if (
            len(left.objects) == 1
            and len(right.objects) == 1
            and not (left.plain or right.plain or left.made or right.made)
        ):
            return left.objects[0] is right.objects[0]
        if type(left.known) is bool and type(right.known) is bool:
            return left.known is right.known
        return None

    def is_handle(self, value: Value) -> bool:
        if value.objects or value.made or not value.plain:
            return False
        return value.handle or type_name(type(value.known)).startswith("h5py.")


def _takes_generator(function: Any) -> bool:
    return getattr(function, "__name__", "") in WITH_GENERATOR and draws_globally(function)


@dataclass(eq=False)
class _Bound:
    owner: Any
    function: Any


# Built-in functions


def _new(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    values = [*args, *kwargs.values()]
    reader._call_back([value for value in values if _is_callable(value)])
    reader.need_plain(*(value for value in values if not _is_callable(value)))
    return fresh(*args)


def _length(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    return reader.length(args[0])


def _summed(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    """Sum values; the elements of summed lists are not copied, and the sum of none is its start."""
    _new(reader, args, kwargs)
    if len(args) > 1 or kwargs:
        return alias(*args, *kwargs.values())
    return replace(fresh(*args), deep=all(argument.deep for argument in args))


def _viewed(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    reader.need_plain(*args, *kwargs.values())
    return alias(*args, *kwargs.values())


def _ordered(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    """Return a container with the elements in another order."""
    reader._call_back([value for value in kwargs.values() if _is_callable(value)])
    reader.need_plain(*(value for value in kwargs.values() if not _is_callable(value)))
    element = reader.iterated(args[0]) if args else NOTHING
    return replace(container(replace(element, known=UNKNOWN)), lazy=bool(args) and args[0].lazy)


def _sorted(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    found = _ordered(reader, args, kwargs)
    if "key" not in kwargs and found.element is not None:
        reader.need_plain(found.element)  # others are compared by a __lt__ of the program
    return found


def _hashed(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    found = _ordered(reader, args, kwargs)
    if found.element is not None:
        reader.need_comparable(found.element)
    return found


def _iterated(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    if len(args) > 1:
        raise Impure("creates an iterator from a function")
    return replace(_listed(reader, args, kwargs), lazy=args[0].lazy)


def _listed(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    reader._call_back([value for value in kwargs.values() if _is_callable(value)])
    if not args:
        return container(either(kwargs.values())) if kwargs else fresh()
    if args[0].items is not None:
        return sequence(args[0].items)
    return container(reader.iterated(args[0]))


def _dict(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    reader.need_plain(*args, *kwargs.values())
    values = [*(reader.values_of_mapping(argument) for argument in args), *kwargs.values()]
    return container(either(values)) if values else fresh()


def _either_of(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    _new(reader, args, kwargs)
    return reader.iterated(args[0]) if len(args) == 1 else either(args)


def _enumerated(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    return replace(container(sequence([fresh(args[0]), reader.iterated(args[0])])), lazy=args[0].lazy)


def _zipped(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    several = [reader.iterated(argument) for argument in args]
    element = container(either(several)) if any(argument.spread for argument in args) else sequence(several)
    return replace(container(element), lazy=any(argument.lazy for argument in args))


def _mapped(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    elements = [reader.iterated(argument) for argument in args[1:]]
    found = reader.repeated(lambda: reader.call_value(args[0], elements, {}))
    return replace(container(found), lazy=_runs_code(args[0]) or any(argument.lazy for argument in args))


def _filtered(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    element = reader.iterated(args[1])
    if args[0].known is None:
        reader.truth(element)
    else:
        reader.repeated(lambda: reader.call_value(args[0], [element], {}))
    return replace(container(element), lazy=_runs_code(args[0]) or args[1].lazy)


def _next(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    if args[0].objects or not args[0].own:
        raise Impure("advances an iterator that outlives the call")
    return either([reader.iterated(args[0]), *args[1:]])


def _is_instance(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    value, kinds = args
    classes = kinds.objects or tuple(candidate for item in kinds.items or () for candidate in item.objects)
    if isinstance(kinds.known, tuple):
        classes = kinds.known
    hooked = any("__subclasshook__" in vars(base) for kind in classes for base in _bases_of_the_program(kind))
    if hooked or any(type(kind) is not type and of_the_program(type(kind).__module__) for kind in classes):
        raise Impure("checks for a type that customises the check")
    if any(type(kind) is ABCMeta and of_the_program(kind.__module__) for kind in classes):
        raise Impure("checks for an abstract type, for which others may be registered")
    if not classes:
        return fresh(value)
    if len(value.objects) == 1 and not value.plain and not value.made and kinds.items is None:
        return Value(plain=True, known=isinstance(value.objects[0], classes))
    if value.known is not UNKNOWN and not value.objects and not value.made and kinds.items is None:
        return Value(plain=True, known=isinstance(value.known, classes))
    if value.item:
        return Value(plain=True, known=issubclass(int, classes))
    return fresh(value)


def _is_tensor(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    reader.need_plain(*args, *kwargs.values())
    return Value(plain=True, known=False) if args and args[0].item else fresh(*args)


def _has_attribute(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    owner, name = args
    if type(name.known) is not str:
        raise Impure("looks up an attribute whose name is not known")
    if owner.made or len(owner.objects) > 1:
        raise Impure("looks up an attribute of one of several objects")
    if len(owner.objects) == 1 and not owner.plain:
        holder = owner.objects[0]
        reader.study.note_attribute(holder, name.known)
        try:
            reader.load_attribute(owner, name.known)
        except MissingAttribute:
            return Value(plain=True, known=False)
        return Value(plain=True, known=True)
    return fresh(owner)


def _get_attribute(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    if type(args[1].known) is not str:
        raise Impure("looks up an attribute whose name is not known")
    try:
        return reader.load_attribute(args[0], args[1].known)
    except MissingAttribute:
        if len(args) > 2:
            for holder in args[0].objects:
                reader.study.note_attribute(holder, args[1].known)
            return args[2]
        raise


def _callable(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    value = args[0]
    if value.objects and not value.plain and not value.made:
        answers = {callable(candidate) for candidate in value.objects}
        if len(answers) == 1:
            return Value(plain=True, known=answers.pop())
    if value.known is None:
        return Value(plain=True, known=False)
    return fresh()


def _open(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    reader.need_plain(*args, *kwargs.values())
    reader.study.reads_files = True
    reader._need_reading(kwargs.get("mode", args[1] if len(args) > 1 else None))
    return replace(fresh(*args), handle=False)


def _type(reader: Calls, args: Sequence[Value], kwargs: Names) -> Value:
    if len(args) == 1 and args[0].objects and not args[0].plain and not args[0].made:
        return Value(objects=tuple({id(type(candidate)): type(candidate) for candidate in args[0].objects}.values()))
    raise Impure("uses the type of a value")


_BUILTINS: dict[int, Callable[[Calls, Sequence[Value], Names], Value]] = {
    **{id(getattr(builtins, name)): _new for name in (
        "int float str bool abs round any all ord chr hex bin oct divmod pow repr ascii bytes bytearray "
        "complex range format").split()},
    **{id(kind): _listed for kind in (list, tuple, deque)},
    id(reversed): _ordered,
    id(sorted): _sorted,
    **{id(kind): _hashed for kind in (set, frozenset)},
    **{id(kind): _dict for kind in (dict, OrderedDict, Counter)},
    id(iter): _iterated,
    id(sum): _summed,
    **{id(kind): _viewed for kind in (slice, memoryview)},
    **{id(getattr(builtins, name)): _either_of for name in ("min", "max")},
    id(len): _length,
    id(enumerate): _enumerated,
    id(zip): _zipped,
    id(map): _mapped,
    id(filter): _filtered,
    id(next): _next,
    id(isinstance): _is_instance,
    id(issubclass): _new,
    id(hasattr): _has_attribute,
    id(getattr): _get_attribute,
    id(callable): _callable,
    id(open): _open,
    id(type): _type,
}  # fmt: skip


_TRUE = Value(plain=True, known=True)
FORM = frozenset("shape dtype ndim device size dim numel __len__".split())


def is_direct(node: ast.expr) -> bool:
    """Return whether the value looked up here is used nowhere else in the call."""
    return isinstance(node, ast.Attribute | ast.Subscript | ast.Name) and not any(
        isinstance(child, ast.NamedExpr) for child in ast.walk(node)
    )


def alias_of_unknown() -> Value:
    return Value(plain=True, own=False, deep=False, steady=False)


def equal_to_itself_alone(candidate: Any) -> bool:
    kind: Any = type(candidate)
    return kind.__eq__ is object.__eq__ and kind.__ne__ is object.__ne__ and kind.__hash__ is object.__hash__


def _bases_of_the_program(kind: Any) -> list[type]:
    return [base for base in getattr(kind, "__mro__", ()) if of_the_program(base.__module__)]


def _members_of_the_program(kind: type) -> list[Any]:
    return [member for base in _bases_of_the_program(kind) for member in vars(base).values()]


def _code_of_call(kind: type) -> Any:
    """Return the function that calling an object runs, for a torch module or a plain class."""
    return getattr(kind, "forward", None) or getattr(kind, "__call__", None)  # noqa: B004 looked up in the class


def _is_known_transform(kind: type) -> bool:
    return type_name(kind) in pure_operations.CALLED and genuine_of("torchvision", _code_of_call(kind))


def _is_table_of_items(kind: type) -> bool:
    return type_name(kind) in pure_operations.TABLES_OF_ITEMS


def _runs_code(callee: Value) -> bool:
    return bool(callee.made) or not all(
        id(function) in _BUILTINS or rule_of(function) is not None for function in callee.objects
    )


def _is_callable(value: Value) -> bool:
    """Return whether the value is a function or class; an object with a `__call__` may be used in other ways too."""
    if value.plain or not (value.objects or value.made):
        return False
    return all(map(_is_function, value.objects)) and all(isinstance(made, Closure | _Bound) for made in value.made)


def _is_function(candidate: Any) -> bool:
    return isinstance(candidate, (*INERT, functools.partial)) or rule_of(candidate) is not None


def _arity(value: Value) -> int:
    for made in value.made:
        if isinstance(made, Closure):
            return len(made.definition.args.args)
    for function in value.objects:
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is not None:
            return int(code.co_argcount) - int(isinstance(function, MethodType))
    return 1


def _given(value: Value | None) -> bool:
    return value is not None and value.known is not None and value.known is not False


def _resizes_image(owner: Value, name: str) -> bool:
    """Return whether this is an image's resize, which returns a new image; that of an array writes into it."""
    return name == "resize" and hasattr(owner.known, "getbands") and is_table(type(owner.known))


def _changes_dtype(owner: Value, name: str, values: Sequence[Value]) -> bool:
    """Return whether a tensor is converted to another dtype than it has, which makes a new one."""
    torch = sys.modules["torch"]
    before = getattr(owner.known, "dtype", None) if owner.known is not UNKNOWN else owner.dtype
    after = getattr(torch, CONVERSIONS[name]) if name in CONVERSIONS and not values else None
    if name in ("to", "type") and len(values) == 1:
        after = values[0].known
    return type(before) is torch.dtype and type(after) is torch.dtype and before is not after


def _refuse_now(values: Sequence[Value]) -> None:
    if any(type(value.known) is str and value.known.lower() in pure_operations.NOW for value in values):
        raise Impure("reads the clock")


def _may_be_of_another_type(owner: Value, name: str, args: Sequence[Value]) -> bool:
    """Return whether this may be `deque.rotate`, `Path.replace` or `Path.rename`."""
    if name == pure_operations.ROTATE:
        return not owner.own and not hasattr(type(owner.known), "getbands")
    return name in pure_operations.REPLACING and len(args) == 1


def _in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__") and not name.startswith("_")


def _makes_arrays(function: Any) -> bool:
    return str(getattr(function, "__module__", "") or "").partition(".")[0] in ("torch", "numpy")


def _why_no_method(name: str) -> str:
    drawing = (
        name in pure_operations.NOT_IN_PLACE
        or name.rstrip("_") in pure_operations.DRAWING
        or name in ("sample", "shuffle")
    )
    return f"draws random numbers with .{name}()" if drawing else f"calls .{name}(), which is not known to be pure"


def _is_module(kind: type) -> bool:
    return any(base.__module__ == "torch.nn.modules.module" for base in kind.__mro__)


def _hooked() -> bool:
    """Return whether global hooks run around the calls of all modules."""
    module = sys.modules["torch.nn.modules.module"]
    return any(getattr(module, name, None) for name in ("_global_forward_hooks", "_global_forward_pre_hooks"))


def _holds(module: Any) -> bool:
    """Return whether a torch module has parameters, hooks or submodules, which makes it a model."""
    held = vars(module)
    return any(held.get(name) for name in held if name.startswith("_") and name not in ("_non_persistent_buffers_set",))
