"""Finds what runs once per file: code in a loop over files, and what it calls, outside of any training."""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.frequency.hotness import Hotness
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.parse.facts import Function, Stack
from hotlap.records.scan_finding import Confidence, Frequency, Step

_LONGEST = 4  # calls in a chain


def per_file(hotness: Hotness, reference: Reference, stack: Stack) -> Heat | None:
    """Return the heat of a place that runs once per file, or None."""
    why = _of_loop(reference, hotness.project.function(reference), stack) or _called(hotness).get(reference)
    return Heat(Frequency.FILE, Confidence.HIGH, Side.TRAIN, why) if why else None


def _of_loop(reference: Reference, function: Function, stack: Stack) -> tuple[Step, ...]:
    for frame in stack:
        if 0 <= frame < len(function.loops) and function.loops[frame].files:
            return (Step(reference.path, function.loops[frame].line, "loop over files"),)
    return ()


@lru_cache(maxsize=2)
def _called(hotness: Hotness) -> dict[Reference, tuple[Step, ...]]:
    """Return the functions that a loop over files calls, themselves or through others, with the calls on the way."""
    found: dict[Reference, tuple[Step, ...]] = {}
    waiting: deque[tuple[Reference, tuple[Step, ...]]] = deque()
    for reference, function in hotness.project.functions():
        if any(loop.files for loop in function.loops):
            waiting.append((reference, ()))
    while waiting:
        reference, reached = waiting.popleft()
        function = hotness.project.function(reference)
        for call in function.calls:
            why = reached or _of_loop(reference, function, call.stack)
            for target in hotness.project.targets(call.callee, reference.path) if why and len(why) < _LONGEST else ():
                if target not in found and target not in hotness.functions and target != reference:
                    found[target] = (*why, Step(reference.path, call.line, f"calls {target.name.rsplit('.', 1)[-1]}"))
                    waiting.append((target, found[target]))
    return found
