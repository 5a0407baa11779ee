"""Answers what a term is, resolving every question in it as far as the project can."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cached_property

from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.modules import EVERYDAY, by_shape, is_object
from hotlap.analysis.names.parameters import Parameters
from hotlap.analysis.parse import torch_names
from hotlap.analysis.parse.statements import is_static
from hotlap.analysis.parse.terms import (
    HOST,
    LOADER,
    LOADERS,
    MODULE,
    TENSOR,
    UNKNOWN,
    Term,
    either,
    element,
    hosted,
    indexed,
    join,
    moved,
    placed,
    unpacked,
)

_LARGEST_FAMILY = 40  # classes
_GROUPS = ("tuple", "list", "dict")
_TENSOR = ("name", "torch.Tensor")


def _each(term: Term, change: Callable[[Term], Term]) -> Term:
    """Apply a change to every part of a term."""
    if isinstance(term, tuple) and term[0] == "join":
        return join(_each(term[1], change), _each(term[2], change))
    if isinstance(term, tuple) and term[0] in _GROUPS:
        return (term[0], *(_each(part, change) if part else part for part in term[1:]))
    return change(term)


def _is_of(returned: Term, known: Mapping[Term, object]) -> bool:
    """Return whether the result consists of these arguments only: one of them, either of them, or a call of one."""
    if isinstance(returned, str):
        return False
    if returned[0] == "join":
        return all(_is_of(part, known) for part in returned[1:])
    return returned in known or (returned[0] == "call" and len(returned) == 2 and returned[1] in known)


class Answers(Parameters):
    def _answer(self, term: tuple[object, ...], origin: str) -> Term:
        kind = term[0]
        if kind in ("function", "class", "instance"):
            return term
        if kind in ("def", "name"):
            return self._defined(term, origin)
        if kind in ("self", "super"):
            return ("instance", origin, term[1])
        if kind in ("star", "held"):
            return self._of_file(kind == "star", str(term[1]), origin)
        if kind == "param":
            return self._parameter(origin, str(term[1]), int(str(term[2])))
        if kind == "rest":
            return self._rest(Reference(origin, str(term[1])))
        if kind in ("some", "partial"):
            return self._narrowed(term, origin)
        if kind in ("list", "dict", "tuple", "enumerated", "zipped"):
            return (kind, *(self.answer(part, origin) for part in term[1:]))  # type: ignore[arg-type]
        if kind == "operation":
            return torch_names.result_of([self.answer(part, origin) for part in term[1:]])  # type: ignore[arg-type]
        return self._operation(term, origin)

    def _operation(self, term: tuple[object, ...], origin: str) -> Term:
        kind = term[0]
        base = self.answer(term[1], origin)  # type: ignore[arg-type]
        if kind == "attr":
            return self._attribute(base, str(term[2]), origin, term[1])  # type: ignore[arg-type]
        if kind == "call":
            own = self._given_back(base, term[2:], origin) if len(term) > 2 else None
            return own if own is not None else self._called(base, term[1], origin)  # type: ignore[arg-type]
        if kind == "item" or (kind == "index" and is_object(base)):
            return self._element(base)
        if kind == "index":
            return self._settled(indexed(base))
        if kind == "part":
            return self._part(base, int(str(term[2])))
        if kind == "join":
            second = self.answer(term[2], origin)  # type: ignore[arg-type]
            if MODULE in term[1:] and TENSOR in (base, second):
                return MODULE  # moved to a device, and put in evaluation mode: only modules are
            return join(base, second)
        if kind in ("prefixed", "member"):
            return self._prefixed(base, str(term[2])) if kind == "prefixed" else self._member(base, origin)
        if kind == "aside":
            return self._aside(base, term[1], origin)  # type: ignore[arg-type]
        return self._placed(kind == "moved", base, term[1])  # type: ignore[arg-type]

    def _narrowed(self, term: tuple[object, ...], origin: str) -> Term:
        """Answer a function with some of its arguments bound, or a value tested with isinstance for a class that the
        project may know."""
        known = self.answer(term[1], origin)  # type: ignore[arg-type]
        if term[0] == "partial":
            return ("partial", known, term[2])
        if isinstance(known, tuple) and known[0] == "class":
            return ("instance", known[1], known[2])
        held = self.answer(term[2], origin)  # type: ignore[arg-type]
        return TENSOR if known == _TENSOR and held == UNKNOWN else held

    def _placed(self, away: bool, base: Term, question: Term) -> Term:
        """Answer a term after .to(device), .cuda() or .cpu()."""
        unknown = away and base == UNKNOWN and isinstance(question, tuple) and question[0] == "call"
        if is_object(base) or unknown:
            return base  # build(…).to(device) may as well be a model
        return _each(base, moved if away else hosted)

    def _prefixed(self, base: Term, beginning: str) -> Term:
        """Answer getattr(self, "loss_" + name): any attribute with that prefix, of the class and of its subclasses."""
        owner = self.class_of(base, "") if beginning else None
        result: Term = UNKNOWN
        for where, kin in (*self.lineage(*owner), *self.heirs(*owner)) if owner is not None else ():
            for name, term in kin.attributes.items():
                if name.startswith(beginning):
                    result = join(result, self.answer(term, where))
        return result

    def _member(self, base: Term, origin: str) -> Term:
        """Answer getattr(module, name): any function or class of that file of the project."""
        path = self.module_file(base[1], origin) if isinstance(base, tuple) and base[0] == "name" else None
        if path is None:
            return UNKNOWN
        summary = self.files[path]
        known: list[Term] = [("function", path, name) for name in summary.functions if name and "." not in name]
        known += [("class", path, name) for name in summary.classes if "." not in name]
        return either(known) if len(known) <= _LARGEST_FAMILY else UNKNOWN

    def _aside(self, base: Term, call: Term, origin: str) -> Term:
        """Place a result: a model's output is on the model's device, a function's is where its arguments are."""
        callee = self.answer(call[1], origin) if isinstance(call, tuple) else UNKNOWN
        return HOST if base == TENSOR and not self._places(callee) else base

    def _places(self, callee: Term) -> bool:
        """Match a model, or a function that moves its data to the device or calls a model."""
        if isinstance(callee, str):
            return callee == MODULE
        if callee[0] == "join":
            return self._places(callee[1]) or self._places(callee[2])
        return callee[0] == "instance" or (callee[0] == "function" and self.function(Reference(*callee[1:])).places)

    def _defined(self, term: tuple[object, ...], origin: str) -> Term:
        place = self._place(term, origin)
        if place is None:
            return (self._variable(str(term[1]), origin) or term) if term[0] == "name" else UNKNOWN
        path, name = place
        summary = self.files[path]
        if name in summary.functions:
            return ("function", path, name)
        if name in summary.classes:
            return ("class", path, name)
        return UNKNOWN

    def _of_file(self, starred: bool, name: str, origin: str) -> Term:
        """Answer a table of the file, or a name that `from module import *` may have imported."""
        if not starred:
            return self.answer(self.files[origin].names.get(name, UNKNOWN), origin)
        for star in self.files[origin].names:
            if star[0] == "*":
                full = ("name", f"{star[1:]}.{name}")
                found = self.answer(full, origin)
                if found not in (full, UNKNOWN):
                    return found
        return UNKNOWN

    def _variable(self, name: str, origin: str, deep: int = 0) -> Term:
        """Return what an imported name is set to in its own file (a table, an object, a device), or a part of that."""
        parts = name.split(".")
        for cut in range(len(parts) - 1, 0, -1) if self._is_own(name) else ():
            path = self.module_file(".".join(parts[:cut]), origin)
            if path is None:
                continue
            found = self.files[path].names.get(parts[cut], UNKNOWN)
            if isinstance(found, tuple) and found[0] == "name":
                return self._variable(".".join((found[1], *parts[cut + 1 :])), path, deep + 1) if deep < 6 else UNKNOWN
            result = self.answer(found, path)
            for part in parts[cut + 1 :]:
                result = self._attribute(result, part, path, UNKNOWN)
            return result
        return UNKNOWN

    def _attribute(self, base: Term, name: str, origin: str, question: Term) -> Term:
        if isinstance(base, str):
            return torch_names.attribute(base, name) if base else UNKNOWN
        if base[0] == "name":
            return self.answer(("name", f"{base[1]}.{name}"), origin)  # may lead back here
        if base[0] == "class":
            method = self.method(base[1], self.files[base[1]].classes[base[2]], name)
            return ("function", *method) if method else UNKNOWN
        if base[0] == "join":
            found = [self._attribute(part, name, origin, question) for part in base[1:3]]
            own = [answer for answer in found if isinstance(answer, tuple) and answer[0] == "function"]
            # A class of the project with modes, `agent.eval()`, is taken for a module too: its own methods are known
            return own[0] if MODULE in base[1:] and len(own) == 1 else join(*found)
        if base[0] != "instance":
            return UNKNOWN
        return self._of_instance(base, name, isinstance(question, tuple) and question[0] == "super")

    def _of_instance(self, base: tuple[object, ...], name: str, from_super: bool) -> Term:
        path = str(base[1])
        owner = self.files[path].classes[str(base[2])]
        method = self.method(path, owner, name, skip_own=from_super)
        if method:
            function = self.function(method)
            if any(decorator in ("property", "functools.cached_property") for decorator, _ in function.decorators):
                return self.answer(function.returns, method.path)
            return ("function", *method)
        result: Term = UNKNOWN
        for where, kin in self.lineage(path, owner):
            if name in kin.attributes:
                result = join(result, self.answer(kin.attributes[name], where))
        return result

    def _called(self, base: Term, question: Term, origin: str) -> Term:
        if isinstance(base, str):
            return self._called_kind(base, question, origin)
        if base[0] == "name":
            known = torch_names.called(base[1], [], {})
            return known if known is not None else by_shape(base[1])
        if base[0] == "class":
            return ("instance", base[1], base[2])
        if base[0] == "function":
            return self._returned(Reference(base[1], base[2]))
        if base[0] == "instance":
            return self._called_instance(base)
        if base[0] == "partial":
            return self._called(base[1], UNKNOWN, origin)
        if base[0] == "join":
            return join(self._called(base[1], question, origin), self._called(base[2], question, origin))
        return UNKNOWN

    def _called_kind(self, base: str, question: Term, origin: str) -> Term:
        found = self._method_of_library(question, origin)
        if found is not None:
            return found
        loader = self._loader_of_family(question) if base == UNKNOWN else UNKNOWN
        if loader:
            return loader
        if isinstance(question, tuple) and question[0] == "attr" and torch_names.is_accessor(question[2]):
            return UNKNOWN  # model.get_dataloader()
        return TENSOR if base in (MODULE, TENSOR) or self._is_part_of_module(question, origin) else UNKNOWN

    def _loader_of_family(self, question: Term) -> Term:
        """Match `trainer.data.train_loader()` of an unknown object if every method of that name makes a loader."""
        if not isinstance(question, tuple) or question[0] != "attr" or question[2] in EVERYDAY:
            return UNKNOWN
        made = [self._returned(method) for method in self.families.get(question[2], ())]
        return LOADER if made and all(answer in LOADERS or self.is_loader(answer) for answer in made) else UNKNOWN

    @cached_property
    def families(self) -> dict[str, list[Reference]]:
        """Methods of a name that only one class has, or only classes that inherit from one of the project."""
        found: dict[str, list[Reference]] = defaultdict(list)
        ancestors: dict[str, set[tuple[str, str]]] = {}
        for path, summary in self.files.items():
            for owner in summary.classes.values():
                line = {(where, ancestor.name) for where, ancestor in self.lineage(path, owner)}
                for name in owner.methods:
                    found[name].append(Reference(path, f"{owner.name}.{name}"))
                    ancestors[name] = ancestors[name] & line if name in ancestors else line
        return {
            name: places
            for name, places in found.items()
            if ancestors[name] and len(places) <= _LARGEST_FAMILY and not name.startswith("__")
        }

    def _is_part_of_module(self, question: Term, origin: str) -> bool:
        """Match `self.net(x)` in a module that sets `net` in a way that cannot be seen."""
        if not isinstance(question, tuple) or question[0] != "attr":
            return False
        owner = self.class_of(self.answer(question[1], origin), origin)
        return owner is not None and self.is_module(*owner) and not torch_names.is_accessor(question[2])

    def _method_of_library(self, question: Term, origin: str) -> Term | None:
        """Return the result of a method whose receiver was itself a question; None if that is no tensor or module."""
        if not isinstance(question, tuple) or question[0] != "attr":
            return None
        receiver = self.answer(question[1], origin)
        if isinstance(receiver, str) or receiver[0] == "dict":
            return torch_names.method_of(receiver, question[2])
        if receiver[0] == "instance" and self.is_module(receiver[1], self.files[receiver[1]].classes[receiver[2]]):
            found = torch_names.method(MODULE, question[2], [], on_host=False)
            return receiver if found == MODULE else TENSOR if question[2] == "forward" else None
        return None

    def _called_instance(self, base: tuple[object, ...]) -> Term:
        path = str(base[1])
        owner = self.files[path].classes[str(base[2])]
        method = self.method(path, owner, "__call__")
        if method is None and self.is_module(path, owner):
            forward = self.method(path, owner, "forward")
            returned = self._returned(forward) if forward else UNKNOWN
            return placed(returned) if isinstance(returned, tuple) and returned[0] in _GROUPS else TENSOR
        return self._returned(method) if method else UNKNOWN

    def _returned(self, reference: Reference) -> Term:
        function = self.function(reference)
        result = self.answer(function.returns, reference.path)
        return ("list", result) if function.generates else result

    def _given_back(self, base: Term, given: tuple[object, ...], origin: str) -> Term | None:
        """Return which argument a function returns, or None if it returns something else. That may be its only
        argument, changed at most in type or shape, or one of two, as `default(value, other)` does."""
        if not isinstance(base, tuple) or base[0] != "function":
            return None
        function = self.function(Reference(base[1], base[2]))
        first = 1 if function.owner and not is_static(function) else 0
        known: dict[Term, object] = {
            ("param", function.name, first + place): argument for place, argument in enumerate(given)
        }
        if function.generates or not _is_of(function.returns, known):
            return None
        return self._put_in(function.returns, known, origin)

    def _put_in(self, returned: Term, known: Mapping[Term, object], origin: str) -> Term:
        if isinstance(returned, tuple) and returned in known:
            return self.answer(known[returned], origin)  # type: ignore[arg-type]
        if isinstance(returned, tuple) and returned[0] == "join":
            return join(self._put_in(returned[1], known, origin), self._put_in(returned[2], known, origin))
        return self._called(self._put_in(returned[1], known, origin), UNKNOWN, origin)  # `value() if callable(value)`

    def _element(self, base: Term) -> Term:
        if isinstance(base, tuple) and base[0] == "instance":
            owner = self.files[base[1]].classes[base[2]]
            method = self.method(base[1], owner, "__next__")
            if method is not None:
                return self._returned(method)
            method = self.method(base[1], owner, "__iter__")
            return element(self._returned(method)) if method is not None else UNKNOWN
        return (
            UNKNOWN
            if isinstance(base, tuple) and base[0] in ("name", "function", "class")
            else self._settled(element(base))
        )

    def _part(self, base: Term, number: int) -> Term:
        if isinstance(base, tuple) and base[0] in ("name", "function", "class", "instance"):
            return UNKNOWN
        if isinstance(base, tuple) and base[0] == "join":
            return join(self._part(base[1], number), self._part(base[2], number))
        total = len(base) - 1 if isinstance(base, tuple) and base[0] == "tuple" else 0
        if isinstance(base, tuple) and base[0] == "tuple" and number >= total:
            return UNKNOWN
        return self._settled(unpacked(base, number, total))

    def _settled(self, term: Term) -> Term:
        return UNKNOWN if isinstance(term, tuple) and term[0] in ("item", "index", "part") else term
