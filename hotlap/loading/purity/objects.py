"""Existing objects as values: what an attribute, a subscript or an iteration yields, noting each place that is read."""

from __future__ import annotations

import functools
import inspect
import sys
from collections import defaultdict
from dataclasses import replace
from enum import Enum
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

from hotlap.loading.purity.genuine import imported_when_used, in_the_standard_library
from hotlap.loading.purity.plain import (
    CONTAINERS,
    elements,
    has_usual_parts,
    is_array,
    is_atom,
    is_plain,
    is_record,
    is_table,
)
from hotlap.loading.purity.rules import why_not
from hotlap.loading.purity.study import Impure, Study
from hotlap.loading.purity.values import UNKNOWN, Value, alias, either

MOST_ELEMENTS = 256  # in a container of objects, each of which is read
OURS = __name__.partition(".")[0]  # inside a program our package has another name
LIBRARIES = frozenset({OURS, "hotlap"}) | frozenset(
    "builtins torch torchvision numpy PIL pandas h5py scipy cv2 pyarrow".split()
)
USUAL_LOOKUPS: tuple[Any, ...] = (object.__getattribute__, type.__getattribute__, ModuleType.__getattribute__)
ABSENT: Any = object()
HEAP_TYPE = 1 << 9


class Objects:
    """Turns objects into values and notes each place in the study."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._plain: dict[int, tuple[Any, bool]] = {}

    def end(self) -> None:
        self._plain.clear()

    def value_of(self, obj: Any) -> Value:
        obj = without_our_layers(obj)
        if is_atom(type(obj)):
            if not has_usual_parts(obj):
                raise Impure(f"reads a {type(obj).__name__} that holds objects of the program's own")
            return Value(plain=True, known=obj)
        found = self._value_of(obj)
        if found.plain:
            self.study.load(found, obj)
        else:
            self._note_class(obj)
        return found

    def _note_class(self, obj: Any) -> None:
        """Note the class of an object or the bases of a class, from which much follows, and which can be replaced."""
        if isinstance(obj, type):
            if of_the_program(obj.__module__):
                self.study.note_attribute(obj, "__mro__")
        elif not isinstance(obj, FunctionType | BuiltinFunctionType | MethodType):
            self.study.note_attribute(obj, "__class__")

    def _value_of(self, obj: Any) -> Value:
        kind = type(obj)
        if is_array(kind):
            self._refuse_array(obj)
            self._refuse_objects_in(obj)
            mixed = getattr(obj.dtype, "hasobject", False)
            return Value(plain=True, own=False, deep=False, array=not mixed, mixed=mixed, known=obj)
        if is_table(kind):
            self._refuse_objects_in(obj)
            self._note_file_of(obj)
            return Value(plain=True, own=False, deep=False, known=obj)
        if kind in CONTAINERS or is_record(kind):
            return self._container(obj)
        return Value(objects=(obj,))

    def _refuse_array(self, array: Any) -> None:
        if str(getattr(array, "layout", "torch.strided")) != "torch.strided" or getattr(array, "is_nested", False):
            raise Impure("it holds a tensor that is sparse or nested")
        if hasattr(array, "is_conj") and (array.is_conj() or array.is_neg()):
            raise Impure("it holds a tensor that is the conjugate or negative of another")
        if getattr(array, "requires_grad", False):
            raise Impure("it holds a tensor that requires a gradient, as its items do where gradients are enabled")

    def _note_file_of(self, table: Any) -> None:
        """Note the file of an open HDF5 object, where writes through another handle show at once."""
        file = table.file if type(table).__module__.startswith("h5py") and hasattr(table, "file") else None
        if file is None:
            return
        if not file or file.mode != "r" or file.driver == "core":
            raise Impure("reads an HDF5 file that is open for writing")
        self.study.reads_files = True
        self.study.texts.add(str(file.filename))

    def _refuse_objects_in(self, obj: Any) -> None:
        if not self.is_plain(obj):
            raise Impure(f"reads a {type(obj).__name__} that holds objects of the program's own")

    def is_plain(self, obj: Any) -> bool:
        self.study.check_time()
        known = self._plain.get(id(obj))
        if known is None or known[0] is not obj:
            known = self._plain[id(obj)] = obj, is_plain(obj)
        return known[1]

    def _container(self, obj: Any) -> Value:
        immutable = type(obj) in (tuple, frozenset) and all(is_atom(type(element)) for element in obj)
        held = Value(plain=True, own=immutable, deep=immutable, known=obj)
        if self.is_plain(obj):
            return held
        self.study.containers[id(obj)] = obj
        if isinstance(obj, dict) and not all(map(_is_plain_key, obj)):
            raise Impure("looks up objects of the program's own in a dictionary")
        inner = list(elements(obj))
        if len(inner) > MOST_ELEMENTS:
            raise Impure(f"it holds {len(inner)} objects of the program's own in one container")
        return replace(held, element=either(self.value_of(element) for element in inner))

    # Elements of plain values

    def element_of(self, container: Value, key: Value | None = None) -> Value:
        """Return what a subscript or, without a key, an iteration yields."""
        if container.items is not None:
            index = UNKNOWN if key is None else key.known
            if isinstance(index, int) and -len(container.items) <= index < len(container.items):
                return container.items[index]
            return either(container.items)
        known = container.known
        if isinstance(known, defaultdict):
            raise Impure("looks up a key in a defaultdict, which may add it")
        if known is not UNKNOWN and type(known) in (*CONTAINERS,):
            return self._element_of_known(container, known, key)
        if container.element is not None:
            return container.element
        steady = container.steady and (key is None or key.steady)
        is_handle = container.handle and key is not None and type(key.known) is str  # else what was read from it
        dtype = getattr(known, "dtype", None) if is_array(type(known)) else container.dtype
        return replace(
            alias(container, array=container.array),
            steady=steady,
            handle=is_handle,
            dtype=dtype,
            begins=container.begins if is_handle else None,
        )

    def _element_of_known(self, container: Value, known: Any, key: Value | None) -> Value:
        if key is not None and key.known is not UNKNOWN and isinstance(key.known, int | str | slice | tuple):
            try:
                return self.value_of(known[key.known])
            except (LookupError, TypeError):
                pass
        if container.element is not None:
            return container.element
        inner = known.values() if isinstance(known, dict) and key is not None else known
        kinds = set(map(type, inner))
        owned = bool(kinds) and all(is_atom(kind) for kind in kinds)
        array = bool(kinds) and all(map(is_array, kinds))
        record = next(iter(kinds)) if len(kinds) == 1 and all(map(is_record, kinds)) else None
        number = bool(kinds) and kinds <= {int, float}
        begins = "" if kinds and all(issubclass(kind, str | PurePath) for kind in kinds) else None
        return Value(
            plain=True,
            own=owned,
            deep=owned,
            steady=key is None or key.steady,
            array=array,
            number=number,
            begins=begins,
            record=record,
        )

    # Attributes of objects

    def attribute(self, obj: Any, name: str) -> Value | Property:
        """Return the value of an attribute, or the property whose code must be read."""
        kind = type(obj)  # isinstance may run code of the object to get its class
        if issubclass(kind, ModuleType):
            return self._of_module(obj, name)
        if issubclass(kind, type):
            return self.of_class(obj, name)
        if inspect.getattr_static(kind, "__getattribute__") not in USUAL_LOOKUPS and not _usual_lookup(kind):
            raise Impure(f"{kind.__name__} customises attribute lookup")
        raw = self.member(kind, name)
        self.study.note_attribute(obj, name)  # even if the class has it: the object may get its own
        if raw is not ABSENT and (hasattr(type(raw), "__set__") or hasattr(type(raw), "__delete__")):
            return self._described(raw, obj, name)
        held = _dict_of(obj)
        if held is not None and name in held:
            return self.value_of(held[name])
        if raw is ABSENT:
            return self._missing(obj, name)
        if isinstance(raw, functools.cached_property):
            raise Impure(f"{kind.__name__}.{name} is cached on first use (cached_property)")
        return self._bound(raw, obj, kind)

    def _described(self, raw: Any, obj: Any, name: str) -> Value | Property:
        """Return the value of a data descriptor, which takes precedence over the object's own attributes."""
        if type(raw) is property:
            if raw.fget is None:
                raise Impure(f"{type(obj).__name__}.{name} cannot be read")
            return Property(raw.fget, obj)
        if isinstance(obj, Enum) and name in ("value", "name"):
            return self.value_of(vars(obj)[f"_{name}_"])
        if isinstance(raw, MemberDescriptorType | GetSetDescriptorType):
            return self._got(raw, obj, name)
        raise Impure(f"{type(obj).__name__}.{name} is looked up through a {type(raw).__name__}")

    def _got(self, raw: Any, obj: Any, name: str) -> Value:
        try:
            return self.value_of(raw.__get__(obj, type(obj)))
        except AttributeError:
            return self._missing(obj, name)

    def _bound(self, raw: Any, obj: Any, kind: type) -> Value:
        raw = without_our_layers(raw)
        if type(raw) is staticmethod:
            return self.value_of(raw.__func__)
        if type(raw) is classmethod:
            return Value(objects=(MethodType(raw.__func__, kind),))
        if isinstance(raw, FunctionType):
            return Value(objects=(MethodType(raw, obj),))
        if hasattr(type(raw), "__get__"):
            if type(raw) is functools._lru_cache_wrapper:
                raise Impure(f"caches what {raw.__name__} returns (lru_cache)")
            if isinstance(inspect.getattr_static(type(raw), "__get__"), FunctionType):
                raise Impure(f"{kind.__name__} has a {type(raw).__name__}, which customises attribute lookup")
            if type(raw).__module__ != "builtins":
                raise Impure(why_not(raw.__get__(obj, kind)))
            return Value(objects=(raw.__get__(obj, kind),))
        return self.value_of(raw)

    def _missing(self, obj: Any, name: str) -> Value:
        kind = type(obj)
        for table in ("_parameters", "_buffers", "_modules"):  # of a torch module
            held = (_dict_of(obj) or {}).get(table)
            if isinstance(held, dict) and name in held:
                self.study.containers[id(held)] = held
                return self.value_of(held[name])
        hook = self.member(kind, "__getattr__")
        if isinstance(hook, FunctionType) and hook.__module__ != "torch.nn.modules.module":
            return Value(made=(DelegatedAttribute(MethodType(hook, obj), name),))
        if hook is not ABSENT and not isinstance(hook, FunctionType):
            raise Impure(f"{kind.__name__} customises attribute lookup")
        raise MissingAttribute(f"{kind.__name__} has no attribute {name}")

    def member(self, kind: type, name: str) -> Any:
        """Return a class member, noting every class that has it or may come to define it earlier in the order."""
        for base in kind.__mro__:
            if not is_immutable(base):
                self.study.names[id(base), name] = vars(base), name
            if name in vars(base):
                return vars(base)[name]
        return ABSENT

    def _of_module(self, module: ModuleType, name: str) -> Value:
        held = vars(module)
        if type(module) is not ModuleType and of_the_program(type(module).__module__):
            raise Impure(f"the module {module.__name__} customises attribute lookup")
        if name not in held:
            inner = sys.modules.get(f"{module.__name__}.{name}") or imported_when_used(module, name)
            if inner is None:
                raise Impure(f"the module {module.__name__} has no {name} yet")
            return Value(objects=(inner,))
        self.study.names[id(held), name] = held, name
        return self.value_of(held[name])

    def of_class(self, kind: type, name: str) -> Value:
        meta = type(kind)
        own_way = meta.__getattribute__ is not type.__getattribute__ or self.member(meta, "__getattr__") is not ABSENT
        if own_way and meta.__module__ not in ("enum", "abc", "typing"):
            raise Impure(f"{kind.__name__} customises attribute lookup")
        if issubclass(kind, Enum) and name in kind.__members__:
            return self.value_of(kind.__members__[name])
        if meta.__getattribute__ is not type.__getattribute__:
            raise Impure(f"{kind.__name__} customises attribute lookup")
        raw, above = self.member(kind, name), self.member(meta, name)
        if above is not ABSENT and any(of_the_program(base.__module__) for base in inspect.getmro(meta)):
            raise Impure(f"{kind.__name__} gets {name} from its metaclass")
        if raw is ABSENT:
            if name in ("__name__", "__qualname__", "__module__"):
                return self.value_of(getattr(kind, name))
            if above is ABSENT:
                raise MissingAttribute(f"{kind.__name__} has no attribute {name}")
            return Value(objects=(getattr(kind, name),))
        return self._member_of_class(kind, name, raw)

    def _member_of_class(self, kind: type, name: str, raw: Any) -> Value:
        if type(raw) is classmethod:
            return Value(objects=(MethodType(raw.__func__, kind),))
        if type(raw) is staticmethod:
            return self.value_of(raw.__func__)
        if isinstance(inspect.getattr_static(type(raw), "__get__", None), FunctionType):
            raise Impure(f"{kind.__name__} has a {type(raw).__name__}, which customises attribute lookup")
        return self.value_of(raw if isinstance(raw, FunctionType) else inspect.getattr_static(kind, name))

    def cell(self, cell: CellType) -> Value:
        self.study.cells[id(cell)] = cell
        try:
            return self.value_of(cell.cell_contents)
        except ValueError:
            raise Impure("uses a variable that has no value yet") from None

    def name_in(self, space: dict[str, Any], name: str) -> Value:
        if of_the_program(space.get("__name__")):
            self.study.names[id(space), name] = space, name
        return self.value_of(space[name])


def is_immutable(kind: type) -> bool:
    """Return whether this is a class of Python or of a C library, whose members cannot be set."""
    return not kind.__flags__ & HEAP_TYPE


class MissingAttribute(Exception):
    """Raised where the program would get an AttributeError."""


class Property:
    def __init__(self, getter: Any, owner: Any) -> None:
        self.getter, self.owner = getter, owner


class DelegatedAttribute:
    """An attribute that the program's own __getattr__ looks up."""

    def __init__(self, hook: MethodType, name: str) -> None:
        self.hook, self.name = hook, name


def _is_plain_key(key: Any) -> bool:
    kind: Any = type(key)
    return is_plain(key) or (kind.__eq__ is object.__eq__ and kind.__hash__ in (object.__hash__, Enum.__hash__))


def without_our_layers(obj: Any) -> Any:
    """Return the program's or library's own function behind a wrapper of hotlap's."""
    while _is_ours(obj) and hasattr(obj, "__wrapped__"):
        obj = obj.__wrapped__
    return obj


def _is_ours(obj: Any) -> bool:
    if type(obj) is FunctionType:
        return str(obj.__globals__.get("__name__", "")).partition(".")[0] == OURS
    return type(obj).__module__.partition(".")[0] == OURS


def _usual_lookup(kind: type) -> bool:
    """Return whether the class's __getattribute__ is known to do nothing unusual."""
    owner = next(base for base in kind.__mro__ if "__getattribute__" in vars(base))
    if owner is SimpleNamespace:
        return True
    return owner.__module__.partition(".")[0] in ("builtins", "functools", "numpy", "torch")


def _dict_of(obj: Any) -> dict[str, Any] | None:
    """Return the instance dictionary, looked up without running code of the class."""
    try:
        held = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
    if type(held) is not dict:
        raise Impure(f"{type(obj).__name__} keeps its attributes in a {type(held).__name__}")
    return held


@functools.lru_cache(maxsize=4096)
def of_the_program(module: Any) -> bool:
    """Return whether a module may change while the program runs: any but the known libraries and Python's own."""
    if not isinstance(module, str):
        return True
    name = module.partition(".")[0]
    if name in LIBRARIES:
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    return name not in sys.stdlib_module_names or (file is not None and not in_the_standard_library(file))


def bases_of_the_program(kind: Any) -> list[type]:
    return [base for base in getattr(kind, "__mro__", ()) if of_the_program(base.__module__)]
