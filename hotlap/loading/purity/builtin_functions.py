"""What Python's built-in functions return, and what they and libraries do with functions they are given."""

from __future__ import annotations

import builtins
import functools
from abc import ABCMeta
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any

from hotlap.loading.purity.comparisons import need_comparable
from hotlap.loading.purity.created import Closure
from hotlap.loading.purity.frames import Names
from hotlap.loading.purity.lookups import Lookups
from hotlap.loading.purity.objects import MissingAttribute, bases_of_the_program, of_the_program
from hotlap.loading.purity.questions import beginning_of, is_callable, need_plain, need_read_mode, need_usual_codec
from hotlap.loading.purity.rules import rule_of
from hotlap.loading.purity.study import Impure
from hotlap.loading.purity.values import ANYTHING, NOTHING, UNKNOWN, Value, alias, container, either, fresh, sequence


def pass_on(reader: Lookups, values: Collection[Value]) -> None:
    """Read the functions among the values, which are called back; the others must be plain."""
    call_back(reader, [value for value in values if is_callable(value)])
    need_plain(*(value for value in values if not is_callable(value)))


def call_back(reader: Lookups, functions: Sequence[Value]) -> None:
    """Read functions that a library calls back with plain values."""
    for function in functions:
        if function.objects and _are_listed(function.objects):
            continue
        for kind in function.objects:
            if isinstance(kind, type) and of_the_program(kind.__module__):
                raise Impure(f"passes on the class {kind.__name__}, and what is done with it is not known")
        reader.repeated(functools.partial(reader.call_value, function, [ANYTHING] * _arity(function), {}))


def _arity(value: Value) -> int:
    for made in value.made:
        if isinstance(made, Closure):
            return len(made.definition.args.args)
    for function in value.objects:
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is not None:
            return int(code.co_argcount) - int(isinstance(function, MethodType))
    return 1


def _new(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    pass_on(reader, [*args, *kwargs.values()])
    return fresh(*args)


def _text(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    need_usual_codec(args[1:], kwargs)
    return replace(_new(reader, args, kwargs), begins=beginning_of(args[0]) if len(args) == 1 else None)


def _number(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    return replace(_new(reader, args, kwargs), number=True)


def _length(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    return replace(reader.length(args[0]), number=True)


def _summed(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    """Sum values; the elements of summed lists are not copied, and the sum of none is its start."""
    _new(reader, args, kwargs)
    if len(args) > 1 or kwargs:
        return alias(*args, *kwargs.values())
    return replace(fresh(*args), deep=all(argument.deep for argument in args))


def _viewed(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    need_plain(*args, *kwargs.values())
    return alias(*args, *kwargs.values())


def _ordered(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    """Return a container with the elements in another order."""
    pass_on(reader, kwargs.values())
    element = reader.iterated(args[0]) if args else NOTHING
    return replace(container(replace(element, known=UNKNOWN)), lazy=bool(args) and args[0].lazy)


def _sorted(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    found = _ordered(reader, args, kwargs)
    if "key" not in kwargs and found.element is not None:
        need_plain(found.element)  # others are compared by a __lt__ of the program
    return found


def _hashed(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    found = _ordered(reader, args, kwargs)
    if found.element is not None:
        need_comparable(found.element)
    return found


def _iterated(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    if len(args) > 1:
        raise Impure("creates an iterator from a function")
    return replace(_listed(reader, args, kwargs), lazy=args[0].lazy)


def _listed(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    call_back(reader, [value for value in kwargs.values() if is_callable(value)])
    if not args:
        return container(either(kwargs.values())) if kwargs else fresh()
    if args[0].items is not None:
        return sequence(args[0].items)
    return container(reader.iterated(args[0]))


def _dict(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    need_plain(*args, *kwargs.values())
    values = [*(reader.values_of_mapping(argument) for argument in args), *kwargs.values()]
    return container(either(values)) if values else fresh()


def _either_of(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    _new(reader, args, kwargs)
    return reader.iterated(args[0]) if len(args) == 1 else either(args)


def _enumerated(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    return replace(container(sequence([fresh(args[0]), reader.iterated(args[0])])), lazy=args[0].lazy)


def _zipped(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    several = [reader.iterated(argument) for argument in args]
    element = container(either(several)) if any(argument.spread for argument in args) else sequence(several)
    return replace(container(element), lazy=any(argument.lazy for argument in args))


def _mapped(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    elements = [reader.iterated(argument) for argument in args[1:]]
    found = reader.repeated(lambda: reader.call_value(args[0], elements, {}))
    return replace(container(found), lazy=_runs_code(args[0]) or any(argument.lazy for argument in args))


def _reduced(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    element = reader.iterated(args[1])
    found = args[2] if len(args) > 2 else element

    def once() -> Value:
        nonlocal found
        found = either([found, reader.call_value(args[0], [found, element], {})])
        return found

    return reader.repeated(once)


def _filtered(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    element = reader.iterated(args[1])
    if args[0].known is None:
        reader.truth(element)
    else:
        reader.repeated(lambda: reader.call_value(args[0], [element], {}))
    return replace(container(element), lazy=_runs_code(args[0]) or args[1].lazy)


def _next(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    if args[0].objects or not args[0].own:
        raise Impure("advances an iterator that outlives the call")
    return either([reader.iterated(args[0]), *args[1:]])


def _is_instance(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    value, kinds = args
    classes = kinds.objects or tuple(candidate for item in kinds.items or () for candidate in item.objects)
    if isinstance(kinds.known, tuple):
        classes = kinds.known
    hooked = any("__subclasshook__" in vars(base) for kind in classes for base in bases_of_the_program(kind))
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


def is_tensor(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    need_plain(*args, *kwargs.values())
    return Value(plain=True, known=False) if args and args[0].item else fresh(*args)


def _has_attribute(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
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


def _get_attribute(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
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


def _callable(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    value = args[0]
    if value.objects and not value.plain and not value.made:
        answers = {callable(candidate) for candidate in value.objects}
        if len(answers) == 1:
            return Value(plain=True, known=answers.pop())
    if value.known is None:
        return Value(plain=True, known=False)
    return fresh()


def _open(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    need_plain(*args, *kwargs.values())
    reader.study.reads_files = True
    need_usual_codec(args[3:], kwargs)
    need_read_mode(kwargs.get("mode", args[1] if len(args) > 1 else None))
    return replace(fresh(*args), handle=False)


def _type(reader: Lookups, args: Sequence[Value], kwargs: Names) -> Value:
    if len(args) == 1 and args[0].objects and not args[0].plain and not args[0].made:
        return Value(objects=tuple({id(type(candidate)): type(candidate) for candidate in args[0].objects}.values()))
    raise Impure("uses the type of a value")


BUILTINS: dict[int, Callable[[Lookups, Sequence[Value], Names], Value]] = {
    **{id(getattr(builtins, name)): _new for name in (
        "bool round any all chr hex bin oct divmod pow repr ascii bytearray complex range format").split()},
    **{id(kind): _text for kind in (str, bytes)},
    **{id(getattr(builtins, name)): _number for name in ("int", "float", "abs", "ord")},
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
    id(functools.reduce): _reduced,
    id(next): _next,
    id(isinstance): _is_instance,
    id(issubclass): _new,
    id(hasattr): _has_attribute,
    id(getattr): _get_attribute,
    id(callable): _callable,
    id(open): _open,
    id(type): _type,
}  # fmt: skip


def _runs_code(callee: Value) -> bool:
    return bool(callee.made) or not _are_listed(callee.objects)


def _are_listed(functions: Iterable[Any]) -> bool:
    return all(id(function) in BUILTINS or rule_of(function) is not None for function in functions)
