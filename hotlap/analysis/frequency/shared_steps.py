"""Finds loops that pass their elements to what a training loop passes its batches to: `self.losses_of(batch)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse.facts import Call, Function, Loop
from hotlap.analysis.parse.terms import NUMBER, TENSOR, UNKNOWN, Term

_DEEPEST = 4  # parts of parts of an element


def sharing(project: Project, trained: Mapping[Reference, Sequence[bool]]) -> Iterator[tuple[Reference, int]]:
    """Yield such loops, by function and number; `trained` tells for every loop whether it is one over batches."""
    passed = {
        target
        for reference, function, number, call in _passing(project, trained)
        if trained[reference][number] and function.loops[number].trains
        for target in project.targets(call.callee, reference.path)
        if _computes(project, target)
    }
    for reference, function, number, call in _passing(project, trained) if passed else ():
        loop = function.loops[number]
        if trained[reference][number] or loop.weights or project.answer(loop.over, reference.path) != UNKNOWN:
            continue
        if passed.intersection(project.targets(call.callee, reference.path)):
            yield reference, number


def _passing(
    project: Project, trained: Mapping[Reference, Sequence[bool]]
) -> Iterator[tuple[Reference, Function, int, Call]]:
    """Yield the calls that get the element of a loop around them, or a part of it."""
    for reference in trained:
        function = project.function(reference)
        for call in function.calls:
            for number in call.stack:
                if number >= 0 and _takes(call, function.loops[number]):
                    yield reference, function, number, call


def _takes(call: Call, loop: Loop) -> bool:
    over = loop.over[1] if isinstance(loop.over, tuple) and loop.over[0] == "enumerated" else loop.over
    if over in (NUMBER, UNKNOWN):
        return False
    return any(_is_of(term, over) for term in (*call.arguments, *(term for _, term in call.keywords)))


def _is_of(term: Term, over: Term) -> bool:
    """Match an element of the iterable, or a part of one, wherever it has been moved."""
    for _ in range(_DEEPEST):
        if not isinstance(term, tuple) or term[0] not in ("item", "part", "moved", "index"):
            return False
        if term[0] == "item" and term[1] == over:
            return True
        term = term[1]
    return False


def _computes(project: Project, target: Reference) -> bool:
    """Return whether a function gives back a tensor, as one does that runs the model or a loss."""
    returned = project.answer(project.function(target).returns, target.path)
    return returned == TENSOR or (isinstance(returned, tuple) and TENSOR in returned[1:])
