"""All files together: which functions a call means, and who calls whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from hotlap.source.answers import Answers
from hotlap.source.classes import Reference
from hotlap.source.facts import Call, Class, Function, Summary
from hotlap.source.modules import EVERYDAY
from hotlap.source.terms import RARELY, UNKNOWN, Term


class Project(Answers):
    def __init__(self, summaries: Iterable[Summary]) -> None:
        super().__init__(summaries)
        self._targets: dict[tuple[Term, str], list[Reference]] = {}
        self._find_callers()

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

    def targets(self, callee: Term, origin: str) -> list[Reference]:
        """The functions of the project that calling it may run."""
        if isinstance(callee, str):
            return []
        key = (callee, origin)
        known = self._targets.get(key)
        if known is None:
            found = (*self._functions(self.answer(callee, origin)), *self._virtual(callee, origin))
            known = list(dict.fromkeys((*found, *self._listed(callee)))) or self._only_family(callee, origin)
            if callee[0] == "param" and len(known) > 2:
                known = []  # what a helper is handed by many callers says little about one of them
            self._targets[key] = known
        return known

    def _virtual(self, callee: tuple[Any, ...], origin: str) -> list[Reference]:
        """What classes that inherit make of a method of self, or of an argument whose class is only its base."""
        if callee[0] in ("some", "item"):
            return self._called_kin(self.class_of(self.answer(callee, origin), origin))
        if callee[0] != "attr" or callee[1][0] not in ("self", "param", "attr", "some"):
            return []
        owner = self.class_of(self.answer(callee[1], origin), origin)
        return self.overrides(*owner, callee[2]) if owner else []

    def _called_kin(self, owner: tuple[str, Class] | None) -> list[Reference]:
        """`metric(x)`, of an object whose base class alone is known: what classes that inherit make of the call."""
        if owner is None:
            return []
        return self.overrides(*owner, "__call__") or (
            self.overrides(*owner, "forward") if self.is_module(*owner) else []
        )

    def _listed(self, callee: tuple[Any, ...]) -> list[Reference]:
        """`for hook in self.hooks: hook.on_batch_end()`: what a list holds in one program says little of others."""
        if callee[0] != "attr" or callee[1][0] != "item" or callee[2] in EVERYDAY:
            return []
        return self.families.get(callee[2], [])

    def _only_family(self, callee: tuple[Any, ...], origin: str) -> list[Reference]:
        """The methods meant on something unknown, where a single class has one of that name, or one family."""
        if callee[0] != "attr" or callee[2] in EVERYDAY or self.answer(callee[1], origin) != UNKNOWN:
            return []
        return self.families.get(callee[2], [])

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
