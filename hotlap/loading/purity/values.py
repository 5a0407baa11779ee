"""What is known of a value while code is read without running it.

A value is *plain* (a number, text, tensor, array, image, table, or a container of these), one of some *objects* that
exist now (functions, modules, instances of the program's classes), or *made* by the code being read. It is its *own* if
the call created it, so that writing into it affects nobody else, and *deep* if that holds for everything inside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any


class Unknown:
    """Takes the place of a concrete value that is not known."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    plain: bool = False
    own: bool = True
    deep: bool = True
    steady: bool = True  # does not depend on which item is fetched
    array: bool = False  # a tensor or array, whose arithmetic allocates new memory
    handle: bool = False  # an open file of arrays, or an array in it, which cannot be written through it
    mixed: bool = False  # an array of Python objects, which its copies share
    lazy: bool = False  # code of the program runs when it is consumed, which may be later
    spread: bool = False  # stands for any number of arguments
    item: bool = False  # the index of the item that is fetched, an int
    number: bool = False  # the result of arithmetic, and so not None
    begins: str | None = None  # how a computed path begins; "" if it is one of the texts that are stored
    known: Any = UNKNOWN  # the plain value itself
    objects: tuple[Any, ...] = ()
    made: tuple[Any, ...] = ()
    record: type | None = None  # the class of a named tuple
    dtype: Any = None  # of a tensor
    items: tuple[Value, ...] | None = None  # of a sequence of known length
    element: Value | None = None  # of a container, if its elements are not simply plain

    @property
    def nothing(self) -> bool:
        """Whether no value exists, because the code does not get that far."""
        return not self.plain and not self.objects and not self.made

    def key(self) -> Any:
        """Return a key that is equal for values of which the same is known."""
        return (
            self.plain,
            self.own,
            self.deep,
            self.steady,
            self.array,
            self.handle,
            self.lazy,
            self.mixed,
            self.item,
            self.number,
            self.begins,
            self.record,
            self.dtype,
            id(self.known),
            tuple(map(id, self.objects)),
            tuple((id(made), getattr(made, "version", 0)) for made in self.made),
            None if self.items is None else tuple(item.key() for item in self.items),
            None if self.element is None else self.element.key(),
        )

    def unsteady(self) -> Value:
        return self if not self.steady else replace(self, steady=False)

    def parts(self) -> Iterable[Value]:
        yield from self.items or ()
        if self.element is not None:
            yield self.element


NOTHING = Value()
ANYTHING = Value(plain=True, own=False, deep=False, steady=False)  # a plain value of which nothing is known


def fresh(*of: Value, array: bool = False) -> Value:
    """Return a value in new memory, made from these."""
    mixed = any(value.mixed for value in of)
    return Value(
        plain=True, deep=not mixed, steady=all(value.steady for value in of), array=array and not mixed, mixed=mixed
    )


def alias(*of: Value, array: bool | None = None) -> Value:
    """Return a value that may share the memory of one of these."""
    owned = all(value.own and value.deep for value in of)
    is_array = any(value.array for value in of) if array is None else array
    return Value(
        plain=True,
        own=owned,
        deep=owned,
        steady=all(value.steady for value in of),
        array=is_array,
        lazy=any(value.lazy for value in of),
        mixed=any(value.mixed for value in of),
    )


def sequence(items: Iterable[Value]) -> Value:
    """Return a list or tuple created in the call."""
    several = tuple(items)
    return Value(
        plain=True,
        deep=all(item.deep for item in several),
        steady=all(item.steady for item in several),
        lazy=any(item.lazy for item in several),
        mixed=any(item.mixed for item in several),
        items=several,
    )


def container(element: Value) -> Value:
    """Return a container created in the call, with any number of such elements."""
    return Value(
        plain=True,
        deep=element.deep,
        steady=element.steady,
        lazy=element.lazy,
        mixed=element.mixed,
        element=element,
    )


def flat(value: Value) -> Value:
    """Return the value without its structure: what is known of its elements holds for the whole."""
    inner = [flat(part) for part in value.parts()]
    return replace(either([replace(value, items=None, element=None), *inner]), known=UNKNOWN) if inner else value


def borrowed(value: Value) -> Value:
    """Return the value as one that belongs to somebody else, with everything inside it."""
    return replace(
        value,
        own=False,
        deep=False,
        items=None if value.items is None else tuple(map(borrowed, value.items)),
        element=None if value.element is None else borrowed(value.element),
    )


def either(values: Iterable[Value]) -> Value:
    return reduce(_either, values, NOTHING)


def _either(left: Value, right: Value) -> Value:
    if left.nothing:
        return right
    if right.nothing or left is right or left.key() == right.key():
        return left
    items, element = _inside(left, right)
    return Value(
        plain=left.plain or right.plain,
        own=left.own and right.own,
        deep=left.deep and right.deep,
        steady=False,  # which one it is may depend on the item that is fetched
        array=(left.array or not left.plain) and (right.array or not right.plain),
        lazy=left.lazy or right.lazy,
        mixed=left.mixed or right.mixed,
        item=left.item and right.item,
        number=left.number and right.number,
        begins=left.begins if left.begins == right.begins else None,
        record=left.record if left.record is right.record else None,
        dtype=left.dtype if left.dtype is right.dtype else None,
        known=left.known if left.known is right.known else UNKNOWN,
        objects=_together(left.objects, right.objects),
        made=_together(left.made, right.made),
        items=items,
        element=element,
    )


def _inside(left: Value, right: Value) -> tuple[tuple[Value, ...] | None, Value | None]:
    if left.items is not None and right.items is not None and len(left.items) == len(right.items):
        return tuple(map(_either, left.items, right.items)), None
    parts = [*left.parts(), *right.parts()]
    return None, either(parts) if parts else None


def _together(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    known = {id(element) for element in left}
    return (*left, *(element for element in right if id(element) not in known))
