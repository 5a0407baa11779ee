"""Finds the functions that are one training step: they make a backward pass, but not in their own loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse.facts import Call, Function
from hotlap.analysis.parse.terms import NUMBER

Callers = Mapping[Reference, Sequence[tuple[Reference, Call]]]


def steppers(project: Project, callers: Callers) -> set[Reference]:
    """Return the functions that make one training step; a loop that calls one of them trains."""
    found = {
        reference
        for reference, function in project.functions()
        if (function.steps or _adds_up(function)) and not function.builds
    }
    grow(found, callers, in_loops=False)
    looping = _looping(project, callers, found)
    gatherers = {reference for reference in looping if _gathers(project, callers, reference)}
    if gatherers:
        found |= gatherers
        grow(found, callers, in_loops=False)
        looping = _looping(project, callers, found) - gatherers
    grow(looping, callers, in_loops=True)
    return found - looping


def _looping(project: Project, callers: Callers, found: set[Reference]) -> set[Reference]:
    """Return the functions that have a training loop of their own."""
    looping = {
        reference
        for reference, function in project.functions()
        if any(loop.trains for loop in function.loops) and not _adds_up(function)
    }
    for stepper in found:
        looping |= {
            reference
            for reference, call in callers.get(stepper, ())
            if any(frame >= 0 for frame in call.stack) and not _adds_up_by(project.function(reference), call)
        }
    return looping


def _adds_up_by(function: Function, call: Call) -> bool:
    """Match gradient accumulation whose backward pass is in a helper: `for _ in range(accumulate): backwards(loss)`."""
    around = [function.loops[frame] for frame in call.stack if frame >= 0]
    return function.updates and all(
        loop.over == NUMBER and loop.parent < 0 and not (loop.updates or loop.epoch or loop.batches or loop.strided)
        for loop in around
    )


def _adds_up(function: Function) -> bool:
    """Match a loop over micro-batches by number, `for _ in range(accumulate)`, with an optimizer step after it; the
    whole is one training step."""
    trains = [loop for loop in function.loops if loop.trains]
    if not trains or not function.updates or any(loop.updates or loop.epoch for loop in function.loops):
        return False
    return all(loop.parent < 0 and (loop.over == NUMBER or not (loop.unpacks or loop.moves)) for loop in trains)


def _gathers(project: Project, callers: Callers, reference: Reference) -> bool:
    """Match a function whose loop only accumulates the gradients of micro-batches; its callers step the optimizer."""
    function = project.function(reference)
    if function.updates or function.builds:
        return False
    calling = {caller._replace(name=caller.name.split(".<lambda")[0]) for caller, _ in callers.get(reference, ())}
    return bool(calling) and all(project.function(caller).updates for caller in calling)


def grow(found: set[Reference], callers: Callers, in_loops: bool) -> None:
    """Add all callers to the functions found; calls in a loop count only with `in_loops`."""
    waiting = deque(found)
    while waiting:
        for reference, call in callers.get(waiting.popleft(), ()):
            if reference not in found and (in_loops or not any(frame >= 0 for frame in call.stack)):
                found.add(reference)
                waiting.append(reference)


def is_trial(reference: Reference) -> bool:
    """Match tests and demonstrations, which make one step to show that it works."""
    return any(word in reference.name.lower() for word in ("test", "demo", "example", "check"))
