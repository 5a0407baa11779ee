"""Resolves calls across all files: which functions a call means, and who calls whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from hotlap.analysis.names.answers import Answers
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.modules import EVERYDAY
from hotlap.analysis.parse.facts import Call, Class, Function, Summary
from hotlap.analysis.parse.features import DEVICES
from hotlap.analysis.parse.terms import RARELY, UNKNOWN, Term

_MOST_NAMED = 40  # methods of the same name


class Project(Answers):
    def __init__(self, summaries: Iterable[Summary]) -> None:
        super().__init__(summaries)
        self._targets: dict[tuple[Term, str], list[Reference]] = {}
        self._find_callers()

    def functions(self) -> list[tuple[Reference, Function]]:
        return self._all_functions

    @cached_property
    def _all_functions(self) -> list[tuple[Reference, Function]]:
        return [
            (Reference(path, name), function)
            for path, summary in self.files.items()
            for name, function in summary.functions.items()
        ]

    @cached_property
    def _last_names(self) -> frozenset[str]:
        """The last names of all that the project defines or sets; an attribute of another name is not its own."""
        found: set[str] = set()
        for summary in self.files.values():
            found.update(summary.names)
            found.update(name.rpartition(".")[2] for name in (*summary.functions, *summary.classes))
            for known in summary.classes.values():
                found.update(known.attributes)
        return frozenset(found)

    @cached_property
    def stays_on_host(self) -> bool:
        """Whether the project makes its own optimizers and never names a device, so that no read waits for one."""
        if any(DEVICES in summary.uses for summary in self.files.values()):
            return False
        return any(function.builds for _, function in self.functions())

    def _find_callers(self) -> None:
        """Find who calls whom, first without knowledge of arguments, then once more with it."""
        every = [
            (reference.path, call)
            for reference, function in self.functions()
            for call in function.calls
            if self.may_be_own(call.callee)
        ]
        for _ in range(2):
            found: dict[Reference, list[tuple[str, Call]]] = defaultdict(list)
            for path, call in every:
                targets = self.targets(call.callee, path)
                given = self._completed(call, path) if targets else call
                for target in targets:
                    found[target].append((path, given))
            self.callers = found
            self._answers.clear()
            self._targets.clear()

    def may_be_own(self, callee: Term) -> bool:
        """Return False for most calls: of a library, or of Python itself."""
        if isinstance(callee, str):
            return False
        if callee[0] == "name":
            return self._is_own(callee[1])
        return callee[0] != "attr" or callee[2] in self._last_names

    def _completed(self, call: Call, origin: str) -> Call:
        """Return the call with placeholders for the arguments that functools.partial has bound."""
        answer = self.answer(call.callee, origin)
        if not isinstance(answer, tuple) or answer[0] != "partial":
            return call
        return replace(call, arguments=(*(UNKNOWN for _ in range(answer[2])), *call.arguments))

    def targets(self, callee: Term, origin: str) -> list[Reference]:
        """Return the functions of the project that a call of `callee` may run."""
        if isinstance(callee, str) or not self.may_be_own(callee):
            return []
        key = (callee, origin)
        known = self._targets.get(key)
        if known is None:
            found = (*self._functions(self.answer(callee, origin)), *self._virtual(callee, origin))
            known = list(dict.fromkeys((*found, *self._listed(callee)))) or self._only_family(callee, origin)
            known = known or self._kin_by_word(callee, origin)
            if callee[0] == "param":  # what many callers pass to a helper says little about any one of them
                known = [] if len(known) > 2 else [*known, *(heir for method in known for heir in self._remade(method))]
            self._targets[key] = known
        return known

    def _remade(self, method: Reference) -> list[Reference]:
        """Return the overrides of `self.step` in subclasses if that method is passed to a helper."""
        owner, _, name = method.name.rpartition(".")
        known = self.files[method.path].classes.get(owner)
        return self.overrides(method.path, known, name) if known is not None else []

    def _virtual(self, callee: tuple[Any, ...], origin: str) -> list[Reference]:
        """Return the overrides of a method of self, or of an argument whose base class alone is known."""
        if callee[0] in ("some", "item"):
            return self._called_kin(self.class_of(self.answer(callee, origin), origin))
        if callee[0] != "attr" or callee[1][0] not in ("self", "param", "attr", "some"):
            return []
        owner = self.class_of(self.answer(callee[1], origin), origin)
        return self.overrides(*owner, callee[2]) if owner else []

    def _called_kin(self, owner: tuple[str, Class] | None) -> list[Reference]:
        """Return what `metric(x)` may run in the subclasses if only the base class of the object is known."""
        if owner is None:
            return []
        return self.overrides(*owner, "__call__") or (
            self.overrides(*owner, "forward") if self.is_module(*owner) else []
        )

    def _listed(self, callee: tuple[Any, ...]) -> list[Reference]:
        """Resolve `for hook in self.hooks: hook.on_batch_end()` by name, as programs fill such lists differently."""
        if callee[0] != "attr" or callee[1][0] != "item" or callee[2] in EVERYDAY:
            return []
        return self.families.get(callee[2], [])

    def _only_family(self, callee: tuple[Any, ...], origin: str) -> list[Reference]:
        """Return the methods meant on an unknown object if a single class or family has one of that name."""
        if callee[0] != "attr" or callee[2] in EVERYDAY or self.answer(callee[1], origin) != UNKNOWN:
            return []
        return self.families.get(callee[2], [])

    def _kin_by_word(self, callee: tuple[Any, ...], origin: str) -> list[Reference]:
        """Resolve `for metric in self.metrics: metric(x, y)` of a list that users fill: the call may run any of the
        project's subclasses of its `Metric`."""
        method, held = (callee[2], callee[1]) if callee[0] == "attr" else ("__call__", callee)
        if held[0] not in ("item", "part"):
            return []
        answer = self.answer(held, origin)
        if answer and isinstance(answer, str):
            return []
        owner = self._bases_by_word.get(self._held_word(held, origin))
        own = self.method(*owner, method) if owner is not None else None
        return [*self.overrides(*owner, method), *([own] if own is not None else [])] if owner is not None else []

    def _held_word(self, term: tuple[Any, ...], origin: str) -> str:
        """Return `metric` for an element of `self.val_metrics`, or of its values."""
        while isinstance(term, tuple) and term[0] in ("item", "part", "index", "call", "enumerated", "attr"):
            if term[0] == "attr" and term[2] not in ("items", "values"):
                break
            term = term[1]
        name = term[2] if isinstance(term, tuple) and term[0] == "attr" else ""
        if isinstance(term, tuple) and term[0] == "param":
            name = self.function(Reference(origin, term[1])).parameters[term[2]]
        return name.rsplit("_", 1)[-1].lower().removesuffix("s") if name.endswith("s") else ""

    @cached_property
    def _bases_by_word(self) -> dict[str, tuple[str, Class]]:
        """Base classes by the word that names them, where only one class has it: `Metric`, `BaseMetric`."""
        found: dict[str, list[tuple[str, Class]]] = defaultdict(list)
        for path, name in self._heirs:
            word = name.rsplit(".", 1)[-1].lower().removeprefix("base").removeprefix("abstract").removesuffix("base")
            known = self.files[path].classes.get(name)
            if known is not None:
                found[word].append((path, known))
        return {word: places[0] for word, places in found.items() if len(places) == 1}

    def fitting(self, call: Call, origin: str) -> list[Reference]:
        """Resolve `self.task.train_step(sample, model, loss, optimizer)` of an unknown object to the only method of
        that name, among unrelated classes, that accepts the call's arguments."""
        callee = call.callee
        if len(call.arguments) < 2 or isinstance(callee, str) or callee[0] != "attr" or callee[2] not in self._shared:
            return []
        if callee[2] in EVERYDAY or callee[2] in self.families or self.answer(callee[1], origin) != UNKNOWN:
            return []
        found = [method for method in self._shared[callee[2]] if _takes(self.function(method), call)]
        return found if len(found) == 1 else []

    @cached_property
    def _shared(self) -> dict[str, list[Reference]]:
        """Methods by name, for names that several classes have."""
        found: dict[str, list[Reference]] = defaultdict(list)
        for reference, function in self.functions():
            if function.owner:
                found[reference.name.rpartition(".")[2]].append(reference)
        return {name: places for name, places in found.items() if len(places) > 1}

    def methods_called(self, name: str) -> list[Reference]:
        """Return the methods of this name in any class, which a call by name may run."""
        found = self.families.get(name) or self._shared.get(name, [])
        return found if len(found) <= _MOST_NAMED else []

    def is_rare(self, term: Term, origin: str) -> bool:
        """Match a function, property or flag that is rarely true."""
        if self.answer(term, origin) == RARELY or any(
            self.function(target).rare for target in self.targets(term, origin)
        ):
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


def _takes(function: Function, call: Call) -> bool:
    """Return whether a function accepts the call's number of arguments and its keywords."""
    most = len(function.parameters) - function.named - 1
    named = all(word in function.parameters for word, _ in call.keywords)
    return (len(call.arguments) <= most or bool(function.rest)) and named
