"""Questions about values, and what must hold of one before it is passed on, compared, kept or written into."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, WrapperDescriptorType
from typing import Any

from hotlap.loading.purity.created import Bound, Closure, Instance
from hotlap.loading.purity.objects import of_the_program
from hotlap.loading.purity.plain import type_name
from hotlap.loading.purity.rules import rule_of
from hotlap.loading.purity.study import Impure
from hotlap.loading.purity.values import Value

DESCRIPTORS = (MethodDescriptorType, WrapperDescriptorType)  # such as str.lower
INERT = (type, FunctionType, BuiltinFunctionType, MethodType)
USUAL_CODECS = frozenset(
    "utf-8 utf8 utf-8-sig ascii us-ascii latin-1 latin1 iso-8859-1 cp1252 utf-16 utf-16-le utf-16-be utf-32 "
    "strict ignore replace backslashreplace surrogateescape surrogatepass xmlcharrefreplace namereplace".split()
)
READ_MODES = frozenset("r rb rt br".split())


def need_plain(*values: Value) -> None:
    """Raise Impure unless the values are plain, since what they are passed to may do anything with them."""
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
        need_plain(*value.parts())


def refuse_lazy(value: Value) -> None:
    """Raise Impure if the value is kept and its code would run later."""
    if value.lazy:
        raise Impure("keeps a generator, whose code runs later")


def need_own(owner: Value, node: ast.expr) -> None:
    """Raise Impure unless the call created the value that it writes into."""
    if owner.nothing:
        return
    if owner.objects or owner.made or not owner.plain or not owner.own:
        raise Impure(f"writes into {ast.unparse(node)}, which outlives the call")


def refuse_object_arrays(values: Sequence[Value]) -> None:
    """Raise Impure if an array of objects is made, since its elements are not copied."""
    for value in values:
        by_name = isinstance(value.known, str) and value.known in ("O", "object")
        by_type = not value.array and getattr(value.known, "hasobject", None) is True
        if by_name or by_type or any(kind is object for kind in value.objects):
            raise Impure("creates an array of objects")


def need_read_mode(mode: Value | None, also: tuple[str, ...] = (), needed: bool = False) -> None:
    """Raise Impure unless a file is opened in a mode that only reads."""
    if mode is None and not needed:
        return
    if mode is None or mode.known not in (*READ_MODES, *also):
        raise Impure("opens a file that it may write to")


def need_usual_codec(args: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
    """Raise Impure unless text is encoded and decoded by Python itself: a program can register its own handlers."""
    given = [*args[:2], *(kwargs[name] for name in ("encoding", "errors") if name in kwargs)]
    for value in given:
        name = value.known
        usual = name is None or (isinstance(name, str) and name.lower().replace("_", "-") in USUAL_CODECS)
        if not usual and type(name) is not int:
            raise Impure("encodes or decodes text in a way that the program may have registered")


def beginning_of(value: Value) -> str | None:
    """Return how a text or path begins, "" if it is one of those that are stored, or None if that is not known."""
    return str(value.known) if isinstance(value.known, str | PurePath) else value.begins


def is_handle(value: Value) -> bool:
    """Return whether this is an open file of arrays, or an array in it."""
    if value.objects or value.made or not value.plain:
        return False
    return value.handle or type_name(type(value.known)).startswith("h5py.")


def path_of_file(handle: Value) -> str | None:
    """Return the path of an open file of arrays, or of the file that an array in it belongs to."""
    name = getattr(getattr(handle.known, "file", handle.known), "filename", None)
    return handle.begins or (None if name is None else str(name))


def is_callable(value: Value) -> bool:
    """Return whether the value is a function or class; an object with a `__call__` may be used in other ways too."""
    if value.plain or not (value.objects or value.made):
        return False
    return all(map(_is_function, value.objects)) and all(isinstance(made, Closure | Bound) for made in value.made)


def _is_function(candidate: Any) -> bool:
    return isinstance(candidate, (*INERT, *DESCRIPTORS, functools.partial)) or rule_of(candidate) is not None


def is_given(value: Value | None) -> bool:
    """Return whether an option is passed, and is neither None nor False."""
    return value is not None and value.known is not None and value.known is not False
