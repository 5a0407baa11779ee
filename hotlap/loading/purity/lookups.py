"""What attributes, subscripts and iteration yield."""

from __future__ import annotations

from dataclasses import replace
from types import FunctionType
from typing import Any

from hotlap.loading.purity.changes import Changes
from hotlap.loading.purity.created import Bound, Instance, Super
from hotlap.loading.purity.objects import ABSENT, DelegatedAttribute, MissingAttribute, Property, of_the_program
from hotlap.loading.purity.plain import is_array, is_atom, is_record, type_name
from hotlap.loading.purity.questions import is_handle, need_plain, path_of_file
from hotlap.loading.purity.rules import is_method
from hotlap.loading.purity.seeded_generators import SEEDED
from hotlap.loading.purity.study import Impure, Study, reference
from hotlap.loading.purity.values import UNKNOWN, Value, alias, either, fresh

FORM = frozenset("shape dtype ndim device size dim numel __len__".split())
OF_ARRAYS = frozenset("T mT H mH data real imag flat nbytes itemsize strides is_cuda layout".split())
OF_IMAGES = frozenset("size width height mode".split())
# Of any plain value: they follow from what is compared, and a program cannot set them without changing that.
OF_VALUES = (
    FORM
    | OF_ARRAYS
    | OF_IMAGES
    | frozenset(
        "columns index values iloc loc at iat str dt cat dtypes empty name names levels attrs chunks maxshape "
        "year month day hour minute second microsecond days seconds microseconds tzinfo "
        "string pos endpos lastindex lastgroup re pattern flags groups groupindex "
        "stem suffix suffixes parent parents parts anchor drive root numerator denominator start stop step "
        "schema column_names num_rows num_columns type kind char itemsize fields hex int value "
        "max min eps tiny bits resolution maxlen".split()
    )
)


class Lookups(Changes):
    def __init__(self, study: Study) -> None:
        super().__init__(study)
        self.later: dict[tuple[int, str], Value] = {}  # attributes that the first fetch sets
        self._looked_at: set[tuple[int, str]] = set()  # attributes read before they were set
        self.in_guard = False  # reading a condition on whether an attribute must be set

    # Attributes

    def load_attribute(self, owner: Value, name: str) -> Value:
        found = []
        missing: str | None = None  # not the error itself, which would form a cycle with its frames
        if owner.plain:
            found.append(self._of_plain(owner, name))
        for holder in owner.objects:
            if (id(holder), name) not in self.later and not self.in_guard:
                self._looked_at.add((id(holder), name))
            try:
                found.append(self._of_object(holder, name))
            except MissingAttribute as error:
                missing = str(error)
        for made in owner.made:
            found.append(self.made_attribute(made, name))
        if not found and missing is not None:
            raise MissingAttribute(missing)
        return either(found)

    def _of_plain(self, owner: Value, name: str) -> Value:
        if is_record(type(owner.known)) and name in owner.known._fields:
            return self.objects.value_of(getattr(owner.known, name))
        if not (_is_of_values(owner, name) or owner.objects or owner.made):  # else it is of one of those, or fails
            what = "value" if owner.known is UNKNOWN else type(owner.known).__name__
            raise Impure(f"reads .{name} of a {what}, whose changes would go unnoticed")
        if is_method(name) and not _is_field(owner, name):
            raise Impure(f"passes on the method .{name}() of a value, and what is done with it is not known")
        found = replace(alias(owner), array=owner.array and name in ("T", "data", "mT", "H", "real", "imag"))
        return either([found, *owner.parts()])

    def _of_object(self, holder: Any, name: str) -> Value:
        later = self.later.get((id(holder), name))
        try:
            found = self.objects.attribute(holder, name)
        except MissingAttribute:
            if later is None:
                raise
            return later
        if isinstance(found, Property):
            return self.call_object(found.getter, [Value(objects=(found.owner,))], {})
        for made in found.made:
            if isinstance(made, DelegatedAttribute):
                found = self.call_object(made.hook, [Value(plain=True, known=made.name)], {})
        return found if later is None else either([found, later])

    def made_attribute(self, made: Any, name: str) -> Value:
        if isinstance(made, Instance):
            if name in made.fields:
                return made.fields[name]
            raw = self.objects.member(made.kind, name)
            if isinstance(raw, FunctionType):
                return Value(made=(Bound(Value(made=(made,)), raw),))
            if isinstance(raw, property) and raw.fget is not None:
                return self.call_object(raw.fget, [Value(made=(made,))], {})
            if isinstance(raw, staticmethod | classmethod) or raw is None:
                raise Impure(f"uses {made.kind.__name__}.{name}")
            return self.objects.of_class(made.kind, name)
        if isinstance(made, Super):
            return Value(made=(Bound(made.owner, self.above(made, name)),))
        raise Impure(f"uses an attribute of a {'generator' if made is SEEDED else 'function'} that it creates")

    def above(self, proxy: Super, name: str) -> Any:
        owner = proxy.owner.objects[0] if proxy.owner.objects else proxy.owner.made[0]
        order = (owner.kind if isinstance(owner, Instance) else type(owner)).__mro__
        for base in order[order.index(proxy.kind) + 1 :]:
            if of_the_program(base.__module__):
                self.study.names[id(base), name] = vars(base), name  # also where it is missing: it may be added
            if name in vars(base):
                return vars(base)[name]
        raise MissingAttribute(name)

    def opens(self, owner: Value, name: str, value: Value) -> bool:
        """Return whether this sets a file that is opened at the first fetch and is the same for all items.

        An array in memory is none: the program may write into it, so it is read only once it is there.
        """
        if len(owner.objects) != 1 or owner.plain or owner.made or not value.steady or not is_handle(value):
            return False
        holder = owner.objects[0]
        if (id(holder), name) not in self.later and (self.undecided or (id(holder), name) in self._looked_at):
            return False  # an item would depend on those fetched before it
        by_default = self.objects.member(type(holder), name)
        if (by_default is not ABSENT and by_default is not None) or (path := path_of_file(value)) is None:
            return False
        self.study.opened[id(holder), name] = reference(holder), name, path
        self.later[id(holder), name] = value
        return True

    # Elements

    def subscript(self, owner: Value, key: Value) -> Value:
        found = []
        if owner.plain:
            need_plain(key)
            found.append(self.objects.element_of(owner, key))
            if not key.steady:
                found = [value.unsteady() for value in found]
        for holder in owner.objects:
            found.append(self.special(holder, "__getitem__", [key]))
        for made in owner.made:
            found.append(self.call_made_method(made, "__getitem__", [key]))
        return either(found)

    def iterated(self, value: Value) -> Value:
        """Return the value of any of its elements."""
        found: list[Value] = []
        if value.plain:
            found.append(self.objects.element_of(value))
        if value.objects:
            raise Impure(f"iterates over a {type(value.objects[0]).__name__}")
        if value.made:
            raise Impure("iterates over an object that it creates")
        return either(found)

    def length(self, value: Value) -> Value:
        for candidate in value.objects:
            self.special(candidate, "__len__", [])
        for made in value.made:
            self.call_made_method(made, "__len__", [])
        return fresh(value)

    def values_of_mapping(self, value: Value) -> Value:
        """Return the values of a dictionary, or of pairs that make one."""
        need_plain(value)
        element = self.iterated(value)
        inner = [self.iterated(element)] if element.items is not None or element.element is not None else [element]
        if value.known is UNKNOWN or isinstance(value.known, dict):
            inner.append(self.objects.element_of(value, Value(plain=True)))
        else:
            inner.append(alias(value))
        return replace(either(inner), known=UNKNOWN)


def _is_of_values(owner: Value, name: str) -> bool:
    """Return whether an attribute follows from what is compared of a value."""
    if _is_field(owner, name):
        return True
    known = owner.known
    if is_array(type(known)):
        return name in FORM or name in OF_ARRAYS
    if hasattr(type(known), "getbands"):
        return name in OF_IMAGES
    if type_name(type(known)).startswith("pandas.") and name in getattr(known, "columns", ()):
        return True
    return name in OF_VALUES or is_atom(type(known))


def _is_field(owner: Value, name: str) -> bool:
    return name in getattr(owner.record, "_fields", ())
