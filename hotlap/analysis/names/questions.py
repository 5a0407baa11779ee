"""Answers each question once and caches the answer, in whatever order questions come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.definitions import Names
from hotlap.analysis.parse.facts import Call, Function, Summary
from hotlap.analysis.parse.terms import LOADER, UNKNOWN, Term

_ANSWERED = frozenset(("function", "class", "instance"))
_DEEPEST = 24  # questions a question may lead to


class Questions(Names):
    def __init__(self, summaries: Iterable[Summary]) -> None:
        super().__init__(summaries)
        self.callers: dict[Reference, list[tuple[str, Call]]] = defaultdict(list)
        self._answers: dict[tuple[Term, str], Term] = {}
        self._open: dict[tuple[Term, str], int] = {}  # questions being answered, and how deep each is
        self._partial: dict[tuple[Term, str], int] = {}  # answers that lack an open question, and how deep that is
        self._lacking = _DEEPEST + 1  # the outermost open question that the answer being made had to do without
        self._assumed: set[tuple[Term, str]] = set()

    def function(self, reference: Reference) -> Function:
        return self.files[reference.path].functions[reference.name]

    def answer(self, term: Term, origin: str) -> Term:
        """Return the term with every question in it answered, as far as the project can."""
        if isinstance(term, str) or term[0] in _ANSWERED:
            return term
        if term[0] == "self":
            return ("instance", origin, term[1])
        key = (term, origin)
        known = self._answers.get(key)
        if known is not None:
            if self._partial and key in self._partial:
                self._lacking = min(self._lacking, self._partial[key])
            return known
        if key in self._assumed:
            return LOADER
        if key in self._open or len(self._open) > _DEEPEST:
            self._lacking = min(self._lacking, self._open.get(key, 0))
            return UNKNOWN
        return self._answered(key)

    def _answered(self, key: tuple[Term, str]) -> Term:
        """Answer a question. An answer that lacks a question still open is valid for that question only, and is
        forgotten with it."""
        here, outer = len(self._open), self._lacking
        self._lacking = _DEEPEST + 1
        self._open[key] = here
        result = self._answers[key] = self._answer(key[0], key[1])  # type: ignore[arg-type]
        del self._open[key]
        if self._lacking < here:
            self._partial[key] = self._lacking
        elif here == 0 and self._partial:
            for question in self._partial:
                self._answers.pop(question, None)
            self._partial.clear()
        self._lacking = min(outer, self._lacking) if self._lacking < here else outer
        return result

    def assume_loaders(self, terms: Iterable[tuple[Term, str]]) -> None:
        """Assume that these terms, which training loops iterate over, are loaders. All later answers build on that."""
        self._assumed.update(terms)
        self._answers.clear()

    def _answer(self, term: tuple[object, ...], origin: str) -> Term:
        raise NotImplementedError
