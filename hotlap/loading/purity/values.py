"""What is known of a value while code is read without running it.

A value is *plain* (a number, text, tensor, array, image, table, or a container of such), or one of some *objects* that
exist now (functions, modules, instances of the program's classes), or *made* by the code that is read. It is *owned*
where the call made it, so that writing into it is nobody else's concern, and *deep* where that holds for all inside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any


class Unknown:
    """Stands where a concrete value is not known."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    plain: bool = False
    own: bool = True
    deep: bool = True
    steady: bool = True  # does not depend on what is fetched
    array: bool = False  # a tensor or array, of which arithmetic makes new memory
    handle: bool = False  # a file, or what was read from one
    mixed: bool = False  # an array of Python objects, which a copy of it shares
    lazy: bool = False  # code of the program runs when it is read, which may be later
    spread: bool = False  # stands for any number of arguments
    item: bool = False  # the number of the item that is fetched, an int
    known: Any = UNKNOWN  # the plain value itself
    objects: tuple[Any, ...] = ()
    made: tuple[Any, ...] = ()
    items: tuple[Value, ...] | None = None  # of a sequence whose length is known
    element: Value | None = None  # of a container: what is in it, where that is not simply plain

    @property
    def nothing(self) -> bool:
        """The code that would have made it does not get so far."""
        return not self.plain and not self.objects and not self.made

    def key(self) -> Any:
        """Equal for values of which the same is known."""
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
            id(self.known),
            tuple(map(id, self.objects)),
            tuple((id(made), getattr(made, "version", 0)) for made in self.made),
            None if self.items is None else tuple(item.key() for item in self.items),
            None if self.element is None else self.element.key(),
        )

    def held(self) -> Value:
        return replace(self, own=False, deep=False)

    def unsteady(self) -> Value:
        return self if not self.steady else replace(self, steady=False)

    def parts(self) -> Iterable[Value]:
        yield from self.items or ()
        if self.element is not None:
            yield self.element


NOTHING = Value()


def fresh(*of: Value, array: bool = False) -> Value:
    """New memory, made from these."""
    mixed = any(value.mixed for value in of)
    return Value(
        plain=True, deep=not mixed, steady=all(value.steady for value in of), array=array and not mixed, mixed=mixed
    )


def alias(*of: Value, array: bool | None = None) -> Value:
    """Perhaps the memory of one of these."""
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
    """A list or tuple made in the call."""
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
    """Any number of such elements, in a container made in the call."""
    return Value(
        plain=True,
        deep=element.deep,
        steady=element.steady,
        lazy=element.lazy,
        mixed=element.mixed,
        element=element,
    )


def flat(value: Value) -> Value:
    """The same without its structure: what is deep inside is said of the whole."""
    inner = [flat(part) for part in value.parts()]
    return replace(either([replace(value, items=None, element=None), *inner]), known=UNKNOWN) if inner else value


def either(values: Iterable[Value]) -> Value:
    return reduce(_either, values, NOTHING)


def _either(one: Value, other: Value) -> Value:
    if one.nothing:
        return other
    if other.nothing or one is other or one.key() == other.key():
        return one
    items, element = _inside(one, other)
    return Value(
        plain=one.plain or other.plain,
        own=one.own and other.own,
        deep=one.deep and other.deep,
        steady=False,  # which of them it is may depend on what is fetched
        array=(one.array or not one.plain) and (other.array or not other.plain),
        lazy=one.lazy or other.lazy,
        mixed=one.mixed or other.mixed,
        item=one.item and other.item,
        known=one.known if one.known is other.known else UNKNOWN,
        objects=_together(one.objects, other.objects),
        made=_together(one.made, other.made),
        items=items,
        element=element,
    )


def _inside(one: Value, other: Value) -> tuple[tuple[Value, ...] | None, Value | None]:
    if one.items is not None and other.items is not None and len(one.items) == len(other.items):
        return tuple(map(_either, one.items, other.items)), None
    parts = [*one.parts(), *other.parts()]
    return None, either(parts) if parts else None


def _together(some: tuple[Any, ...], others: tuple[Any, ...]) -> tuple[Any, ...]:
    known = {id(element) for element in some}
    return (*some, *(element for element in others if id(element) not in known))
