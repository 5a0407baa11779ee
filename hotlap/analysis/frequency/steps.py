"""Which functions are one step of a training: a backward pass in no loop over batches of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse.facts import Call, Function
from hotlap.analysis.parse.terms import NUMBER

Callers = Mapping[Reference, Sequence[tuple[Reference, Call]]]


def steppers(project: Project, callers: Callers) -> set[Reference]:
    """Whoever calls one of them in a loop is training."""
    found = {
        one for one, function in project.functions() if (function.steps or _adds_up(function)) and not function.builds
    }
    grow(found, callers, in_loops=False)
    looping = _looping(project, callers, found)
    gatherers = {one for one in looping if _gathers(project, callers, one)}
    if gatherers:
        found |= gatherers
        grow(found, callers, in_loops=False)
        looping = _looping(project, callers, found) - gatherers
    grow(looping, callers, in_loops=True)
    return found - looping


def _looping(project: Project, callers: Callers, found: set[Reference]) -> set[Reference]:
    """Functions with a training loop of their own."""
    looping = {
        reference
        for reference, function in project.functions()
        if any(loop.trains for loop in function.loops) and not _adds_up(function)
    }
    for stepper in found:
        looping |= {
            reference
            for reference, call in callers.get(stepper, ())
            if any(one >= 0 for one in call.stack) and not _adds_up_by(project.function(reference), call)
        }
    return looping


def _adds_up_by(function: Function, call: Call) -> bool:
    """The same, where a helper makes the backward pass: `for _ in range(accumulate): backwards(loss)`."""
    around = [function.loops[one] for one in call.stack if one >= 0]
    return function.updates and all(
        loop.over == NUMBER and loop.parent < 0 and not (loop.updates or loop.epoch or loop.batches or loop.strided)
        for loop in around
    )


def _adds_up(function: Function) -> bool:
    """Goes over micro-batches by number, `for _ in range(accumulate)`, and steps after that: one step as a whole."""
    trains = [loop for loop in function.loops if loop.trains]
    if not trains or not function.updates or any(loop.updates or loop.epoch for loop in function.loops):
        return False
    return all(loop.parent < 0 and (loop.over == NUMBER or not (loop.unpacks or loop.moves)) for loop in trains)


def _gathers(project: Project, callers: Callers, reference: Reference) -> bool:
    """Only adds up gradients of micro-batches in its loop: those who call it step the optimizer."""
    function = project.function(reference)
    if function.updates or function.builds:
        return False
    who = {one._replace(name=one.name.split(".<lambda")[0]) for one, _ in callers.get(reference, ())}
    return bool(who) and all(project.function(one).updates for one in who)


def grow(found: set[Reference], callers: Callers, in_loops: bool) -> None:
    """Add who calls one of them; calls in a loop count only if asked for."""
    waiting = deque(found)
    while waiting:
        for reference, call in callers.get(waiting.popleft(), ()):
            if reference not in found and (in_loops or not any(frame >= 0 for frame in call.stack)):
                found.add(reference)
                waiting.append(reference)


def is_trial(reference: Reference) -> bool:
    """Tests and demonstrations make one step to see that it works."""
    return any(word in reference.name.lower() for word in ("test", "demo", "example", "check"))
