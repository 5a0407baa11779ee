"""All files together: which function a call means, and what a term is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from hotlap.source import torch_names
from hotlap.source.classes import Classes, Reference
from hotlap.source.facts import Call, Function, Summary
from hotlap.source.modules import EVERYDAY, argument, by_shape, importable, is_thing, shared
from hotlap.source.terms import (
    HOST,
    MODULE,
    NUMBER,
    RARELY,
    TENSOR,
    TEXT,
    UNKNOWN,
    Term,
    element,
    hosted,
    indexed,
    join,
    moved,
    unpacked,
)

_DEEPEST = 24  # questions a question may lead to
_LARGEST_FAMILY = 40  # classes


class Project(Classes):
    def __init__(self, summaries: Iterable[Summary]) -> None:
        super().__init__({one.path: one for one in summaries})
        self.canonical = {one.module: one.path for one in self.files.values()}
        self.modules = importable(self.files.values())
        self.callers: dict[Reference, list[tuple[str, Call]]] = defaultdict(list)
        self._answers: dict[tuple[Term, str], Term] = {}
        self._targets: dict[tuple[Term, str], list[Reference]] = {}
        self._asked = 0
        self._open: set[tuple[Term, str]] = set()
        self._find_callers()

    def function(self, reference: Reference) -> Function:
        return self.files[reference.path].functions[reference.name]

    def functions(self) -> Iterator[tuple[Reference, Function]]:
        for path, summary in self.files.items():
            for name, function in summary.functions.items():
                yield Reference(path, name), function

    def _find_callers(self) -> None:
        """Who calls whom, first by what needs no knowledge of arguments; then once more with it."""
        for _ in range(2):
            found: dict[Reference, list[tuple[str, Call]]] = defaultdict(list)
            for reference, function in self.functions():
                for call in function.calls:
                    targets = self.targets(call.callee, reference.path)
                    given = self._completed(call, reference.path) if targets else call
                    for target in targets:
                        found[target].append((reference.path, given))
            self.callers = found
            self._answers.clear()
            self._targets.clear()

    def _completed(self, call: Call, origin: str) -> Call:
        """The call with the arguments that functools.partial gave before, as far as their number."""
        answer = self.answer(call.callee, origin)
        if not isinstance(answer, tuple) or answer[0] != "partial":
            return call
        return replace(call, arguments=(*(UNKNOWN for _ in range(answer[2])), *call.arguments))

    # Modules and names

    def module_file(self, name: str, origin: str) -> str | None:
        """The scanned file that an import means: the nearest of those that may be imported by this name."""
        if name[0] == "@":
            return self.canonical.get(name[1:])
        paths = self.modules.get(name)
        if not paths:
            return None
        if len(paths) == 1:
            return paths[0]
        return max(paths, key=lambda path: (shared(path, origin), -path.count("/")))

    def definition(self, name: str, origin: str, deep: int = 0) -> tuple[str, str] | None:
        """Where a dotted name is defined in the project: file and qualified name."""
        parts = name.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            path = self.module_file(".".join(parts[:cut]), origin)
            if path is not None:
                return self._in_file(path, parts[cut:], deep)
        return None

    def _in_file(self, path: str, parts: Sequence[str], deep: int) -> tuple[str, str] | None:
        summary, qualified = self.files[path], ".".join(parts)
        if qualified in summary.functions or qualified in summary.classes:
            return path, qualified
        term = summary.names.get(parts[0])
        if isinstance(term, tuple) and term[0] == "name" and deep < 6:
            return self.definition(".".join([term[1], *parts[1:]]), path, deep + 1)
        if isinstance(term, tuple) and term[0] == "def":
            return path, ".".join([term[1], *parts[1:]])
        for star in summary.names:
            if star[0] == "*" and deep < 6:
                found = self.definition(f"{star[1:]}.{qualified}", path, deep + 1)
                if found is not None:
                    return found
        return None

    def _place(self, term: Term, origin: str) -> tuple[str, str] | None:
        if isinstance(term, tuple) and term[0] == "def":
            return origin, term[1]
        if isinstance(term, tuple) and term[0] == "name":
            return self.definition(term[1], origin)
        return None

    # Calls

    def targets(self, callee: Term, origin: str) -> list[Reference]:
        """The functions of the project that calling it may run."""
        if isinstance(callee, str):
            return []
        key = (callee, origin)
        known = self._targets.get(key)
        if known is None:
            known = list(dict.fromkeys((*self._functions(self.answer(callee, origin)), *self._virtual(callee, origin))))
            known = known or self._only_family(callee, origin)
            if callee[0] == "param" and len(known) > 2:
                known = []  # what a helper is handed by many callers says little about one of them
            self._targets[key] = known
        return known

    def _virtual(self, callee: tuple[Any, ...], origin: str) -> list[Reference]:
        """What classes that inherit make of a method of self, or of an argument whose class is only its base."""
        if callee[0] != "attr" or callee[1][0] not in ("self", "param"):
            return []
        owner = self.class_of(self.answer(callee[1], origin), origin)
        return self.overrides(*owner, callee[2]) if owner else []

    def _only_family(self, callee: tuple[Any, ...], origin: str) -> list[Reference]:
        """The methods meant on something unknown, where a single class has one of that name, or one family."""
        if callee[0] != "attr" or callee[2] in EVERYDAY or self.answer(callee[1], origin) != UNKNOWN:
            return []
        return self.families.get(callee[2], [])

    @cached_property
    def families(self) -> dict[str, list[Reference]]:
        """Methods of a name that only one class has, or only classes that inherit from one of the project."""
        found: dict[str, list[Reference]] = defaultdict(list)
        ancestors: dict[str, set[tuple[str, str]]] = {}
        for path, summary in self.files.items():
            for owner in summary.classes.values():
                line = {(where, one.name) for where, one in self.lineage(path, owner)}
                for name in owner.methods:
                    found[name].append(Reference(path, f"{owner.name}.{name}"))
                    ancestors[name] = ancestors[name] & line if name in ancestors else line
        return {
            name: places
            for name, places in found.items()
            if ancestors[name] and len(places) <= _LARGEST_FAMILY and not name.startswith("__")
        }

    def is_rare(self, term: Term, origin: str) -> bool:
        """A function, property or flag that is true now and then only."""
        if self.answer(term, origin) == RARELY or any(self.function(one).rare for one in self.targets(term, origin)):
            return True
        if not isinstance(term, tuple) or term[0] != "attr":
            return False
        owner = self.class_of(self.answer(term[1], origin), origin)
        method = self.method(*owner, term[2]) if owner else None
        return method is not None and self.function(method).rare

    def _functions(self, answer: Term) -> Iterator[Reference]:
        if not isinstance(answer, tuple):
            return
        if answer[0] == "function":
            yield Reference(answer[1], answer[2])
        elif answer[0] == "class":
            yield from self._methods_of(answer, ("__init__", "__post_init__"))
        elif answer[0] == "instance":
            yield from list(self._methods_of(answer, ("__call__", "forward")))[:1]
        elif answer[0] == "partial":
            yield from self._functions(answer[1])
        elif answer[0] == "join":
            for part in answer[1:]:
                yield from self._functions(part)

    def _methods_of(self, answer: tuple[Any, ...], names: tuple[str, ...]) -> Iterator[Reference]:
        owner = self.files[answer[1]].classes[answer[2]]
        for name in names:
            method = self.method(answer[1], owner, name)
            if method:
                yield method

    # Terms

    def answer(self, term: Term, origin: str) -> Term:
        """The term with every question in it answered as far as the project can."""
        if isinstance(term, str):
            return term
        key = (term, origin)
        known = self._answers.get(key)
        if known is not None:
            return known
        if key in self._open or len(self._open) > _DEEPEST:
            return UNKNOWN
        self._open.add(key)
        result = self._answer(term, origin)
        self._open.discard(key)
        self._answers[key] = result
        return result

    def _answer(self, term: tuple[object, ...], origin: str) -> Term:
        kind = term[0]
        if kind in ("function", "class", "instance"):
            return term
        if kind in ("def", "name"):
            return self._defined(term, origin)
        if kind == "self":
            return ("instance", origin, term[1])
        if kind == "super":
            return ("instance", origin, term[1])
        if kind == "param":
            return self._parameter(origin, str(term[1]), int(str(term[2])))
        if kind == "partial":
            return ("partial", self.answer(term[1], origin), term[2])  # type: ignore[arg-type]
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
            return self._called(base, term[1], origin)  # type: ignore[arg-type]
        if kind == "item" or (kind == "index" and is_thing(base)):
            return self._element(base)
        if kind == "index":
            return self._settled(indexed(base))
        if kind == "part":
            return self._part(base, int(str(term[2])))
        if kind == "join":
            return join(base, self.answer(term[2], origin))  # type: ignore[arg-type]
        if kind == "aside":
            return self._aside(base, term[1], origin)  # type: ignore[arg-type]
        if is_thing(base) or (base == UNKNOWN and isinstance(term[1], tuple) and term[1][0] == "call"):
            return base  # build(…).to(device) may as well be a model
        return moved(base) if kind == "moved" else hosted(base)

    def _aside(self, base: Term, call: Term, origin: str) -> Term:
        """A model's output is on its own device, whatever went in; a function's where its arguments are."""
        callee = self.answer(call[1], origin) if isinstance(call, tuple) else UNKNOWN
        if callee == MODULE or (isinstance(callee, tuple) and callee[0] == "instance"):
            return base
        return HOST if base == TENSOR else base

    def _defined(self, term: tuple[object, ...], origin: str) -> Term:
        place = self._place(term, origin)
        if place is None:
            return term if term[0] == "name" else UNKNOWN
        path, name = place
        summary = self.files[path]
        if name in summary.functions:
            return ("function", path, name)
        if name in summary.classes:
            return ("class", path, name)
        return UNKNOWN

    def _attribute(self, base: Term, name: str, origin: str, asked: Term) -> Term:
        if isinstance(base, str):
            return torch_names.attribute(base, name) if base else UNKNOWN
        if base[0] == "name":
            return self._defined(("name", f"{base[1]}.{name}"), origin)
        if base[0] == "class":
            method = self.method(base[1], self.files[base[1]].classes[base[2]], name)
            return ("function", *method) if method else UNKNOWN
        if base[0] == "join":
            return join(self._attribute(base[1], name, origin, asked), self._attribute(base[2], name, origin, asked))
        if base[0] != "instance":
            return UNKNOWN
        return self._of_instance(base, name, isinstance(asked, tuple) and asked[0] == "super")

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
        for where, one in self.lineage(path, owner):
            if name in one.attributes:
                result = join(result, self.answer(one.attributes[name], where))
        return result

    def _called(self, base: Term, asked: Term, origin: str) -> Term:
        if isinstance(base, str):
            found = self._method_of_library(asked, origin)
            if found is not None:
                return found
            return TENSOR if base in (MODULE, TENSOR) or self._is_part_of_module(asked, origin) else UNKNOWN
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
            return join(self._called(base[1], asked, origin), self._called(base[2], asked, origin))
        return UNKNOWN

    def _is_part_of_module(self, asked: Term, origin: str) -> bool:
        """`self.net(x)` in a module that sets `net` where nobody sees it."""
        if not isinstance(asked, tuple) or asked[0] != "attr":
            return False
        owner = self.class_of(self.answer(asked[1], origin), origin)
        return owner is not None and self.is_module(*owner) and not torch_names.is_accessor(asked[2])

    def _method_of_library(self, asked: Term, origin: str) -> Term | None:
        """A method of a tensor or module that was itself a question; None where it is no method."""
        if not isinstance(asked, tuple) or asked[0] != "attr":
            return None
        receiver = self.answer(asked[1], origin)
        if isinstance(receiver, str) or receiver[0] == "dict":
            return torch_names.method_of(receiver, asked[2])
        if receiver[0] == "instance" and self.is_module(receiver[1], self.files[receiver[1]].classes[receiver[2]]):
            found = torch_names.method(MODULE, asked[2], [], on_host=False)
            return receiver if found == MODULE else TENSOR if asked[2] == "forward" else None
        return None

    def _called_instance(self, base: tuple[object, ...]) -> Term:
        path = str(base[1])
        owner = self.files[path].classes[str(base[2])]
        method = self.method(path, owner, "__call__")
        if method is None and self.is_module(path, owner):
            forward = self.method(path, owner, "forward")
            returned = self._returned(forward) if forward else UNKNOWN
            return returned if isinstance(returned, tuple) and returned[0] in ("tuple", "list", "dict") else TENSOR
        return self._returned(method) if method else UNKNOWN

    def _returned(self, reference: Reference) -> Term:
        function = self.function(reference)
        result = self.answer(function.returns, reference.path)
        return ("list", result) if function.generates else result

    def _element(self, base: Term) -> Term:
        if isinstance(base, tuple) and base[0] == "instance":
            owner = self.files[base[1]].classes[base[2]]
            method = self.method(base[1], owner, "__iter__") or self.method(base[1], owner, "__getitem__")
            return element(self._returned(method)) if method and method.name.endswith("__iter__") else UNKNOWN
        return (
            UNKNOWN
            if isinstance(base, tuple) and base[0] in ("name", "function", "class")
            else self._settled(element(base))
        )

    def _part(self, base: Term, number: int) -> Term:
        if isinstance(base, tuple) and base[0] in ("name", "function", "class", "instance"):
            return UNKNOWN
        total = len(base) - 1 if isinstance(base, tuple) and base[0] == "tuple" else 0
        if isinstance(base, tuple) and base[0] == "tuple" and number >= total:
            return UNKNOWN
        return self._settled(unpacked(base, number, total))

    def _settled(self, term: Term) -> Term:
        return UNKNOWN if isinstance(term, tuple) and term[0] in ("item", "index", "part") else term

    def _parameter(self, path: str, name: str, number: int) -> Term:
        reference = Reference(path, name)
        function = self.function(reference)
        annotated = function.annotations[number]
        result: Term = self.answer(annotated, path) if annotated else UNKNOWN
        if result not in (UNKNOWN, MODULE) and not (isinstance(result, tuple) and result[0] == "name"):
            return result
        result = UNKNOWN if isinstance(result, tuple) else result
        shift = 1 if function.owner and not any(one == "staticmethod" for one, _ in function.decorators) else 0
        plain = False
        for origin, call in self.callers.get(reference, ()):
            given = argument(call, number - shift, function.parameters[number])
            if given is not None:
                answer = self.answer(given, origin)
                plain = plain or answer in (NUMBER, TEXT)
                result = join(result, answer)
        return UNKNOWN if plain and result == TENSOR else result  # a tensor here, a number there: neither is sure
