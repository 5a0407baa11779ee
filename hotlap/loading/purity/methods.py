"""What methods of plain values return: those of numbers, texts, containers, arrays, images and tables."""

from __future__ import annotations

import ast
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

from hotlap.loading.purity import pure_operations
from hotlap.loading.purity.builtin_functions import call_back, pass_on
from hotlap.loading.purity.frames import Names
from hotlap.loading.purity.library_types import is_replaced, library_types
from hotlap.loading.purity.lookups import Lookups
from hotlap.loading.purity.objects import MissingAttribute
from hotlap.loading.purity.plain import is_atom, is_table
from hotlap.loading.purity.questions import is_callable, is_given, need_plain, need_usual_codec, refuse_object_arrays
from hotlap.loading.purity.rules import written_by_method
from hotlap.loading.purity.seeded_generators import FILLING, is_seeded
from hotlap.loading.purity.study import Impure
from hotlap.loading.purity.values import UNKNOWN, Value, alias, container, either, fresh, sequence

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


class Methods(Lookups):
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
        functions = [value for value in values if is_callable(value)] if name in pure_operations.CALLBACKS else []
        if functions:
            call_back(self, functions)
        elif name in FILLING and is_seeded(kwargs.get("generator")):
            given = [*args, *(value for key, value in kwargs.items() if key != "generator")]
            return self._writing(owner, name, given, node, from_own=True).unsteady()
        elif (name in pure_operations.WRITES or _in_place(name)) and not _resizes_image(owner, name):
            return self._writing(owner, name, values, node)
        elif name not in pure_operations.METHODS:
            raise Impure(_why_no_method(name))
        elif _may_be_of_another_type(owner, name, args):
            raise Impure(f"calls .{name}() of a value that may be a deque or a path, where it is not pure")
        if name in ("encode", "decode"):
            need_usual_codec(args, kwargs)
        self._note_library_methods(name)
        self.study.ordered |= name in pure_operations.ORDERED_METHODS
        self.study.reads_files |= name in FILE_METHODS
        self._need_no_writing(owner, name, args, kwargs)
        if name == "get" and (owner.element is not None or type(owner.known) is dict):
            need_plain(*args[:1])
            return either(
                [self.objects.element_of(owner, args[0] if args else None), *args[1:], Value(plain=True, known=None)]
            )
        need_plain(owner, *(value for value in values if value not in functions))
        return self._given_by_method(owner, name, values, kwargs)

    def _note_library_methods(self, name: str) -> None:
        """Note the method of each type among values whose methods a program can replace; raise if it has."""
        for kind in library_types():
            if is_replaced(kind, name):
                raise Impure(f"calls .{name}(), which the program has replaced in {kind.__name__}")
            self.study.names[id(kind), name] = vars(kind), name  # also where it is missing: it may be added

    def _need_no_writing(self, owner: Value, name: str, args: Sequence[Value], kwargs: Names) -> None:
        if is_given(kwargs.get("inplace")) or not all(
            argument.own for argument in written_by_method(name, args, kwargs)
        ):
            raise Impure(f"writes into a value with .{name}()")
        if name in pure_operations.OF_FILES and not owner.own:
            raise Impure(f"reads a file that outlives the call with .{name}()")
        refuse_object_arrays([*args, *kwargs.values()])

    def _given_by_method(self, owner: Value, name: str, values: Sequence[Value], kwargs: Names) -> Value:
        """Return new memory if that is certain, else a possible alias of the method's object."""
        copies = "copy" not in kwargs
        if name in LISTING_METHODS:
            return container(fresh(owner, *values))
        if name in pure_operations.KEEP_A_NUMBER and (owner.array or name not in ("item", "tolist")):
            return replace(fresh(owner, *values), number=name == "item")
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
        need_plain(owner)
        if owner.array and name in pure_operations.OF_CONTAINERS:
            raise Impure(f"writes into an element of an array with .{name}()")
        may_draw = from_own or (self.study.may_draw and name[:5] not in ("share", "pin_m"))
        if name in pure_operations.NOT_IN_PLACE and not may_draw:
            raise Impure(_why_no_method(name))
        if not owner.own:
            what = "a value" if node is None else ast.unparse(node)
            raise Impure(f"writes into {what}, which outlives the call, with .{name}()")
        pass_on(self, values)
        if not owner.array:
            self.put_into_a_container(*values)
        return replace(alias(owner, *values), array=owner.array)


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


def _may_be_of_another_type(owner: Value, name: str, args: Sequence[Value]) -> bool:
    """Return whether this may be `deque.rotate`, `Path.replace` or `Path.rename`."""
    if name == pure_operations.ROTATE:
        return not owner.own and not hasattr(type(owner.known), "getbands")
    return name in pure_operations.REPLACING and len(args) == 1


def _in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__") and not name.startswith("_")


def _why_no_method(name: str) -> str:
    drawing = (
        name in pure_operations.NOT_IN_PLACE
        or name.rstrip("_") in pure_operations.DRAWING
        or name in ("sample", "shuffle")
    )
    return f"draws random numbers with .{name}()" if drawing else f"calls .{name}(), which is not known to be pure"
