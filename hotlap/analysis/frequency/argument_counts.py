"""Tells whether an argument counts the turns of a loop in every caller: `monitor.log(loss, batch_number)`."""

from __future__ import annotations

from hotlap.analysis.frequency.steps import Callers
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.parse.facts import Function
from hotlap.analysis.parse.statements import is_static


def counts_turns(callers: Callers, reference: Reference, function: Function, name: str) -> bool:
    shift = 1 if function.owner and not is_static(function) else 0
    number = function.parameters.index(name) - shift
    known = callers.get(reference, ())
    return bool(known) and all(name in call.counts or number in call.counts for _, call in known)
