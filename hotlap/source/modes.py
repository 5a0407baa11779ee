"""Under which modes a function runs: without a graph, with a model put in evaluation mode."""

from __future__ import annotations

from hotlap.source.classes import Reference
from hotlap.source.project import Project
from hotlap.source.steps import Callers


def under_no_grad(project: Project, callers: Callers, reference: Reference, deep: int = 0) -> bool:
    """The function, or everybody who calls it, does not record a graph."""
    if project.function(reference).no_grad:
        return True
    known = callers.get(reference, [])
    if not known or deep > 4:
        return False
    return all(call.no_grad or under_no_grad(project, callers, one, deep + 1) for one, call in known)


def put_to_eval(project: Project, callers: Callers, reference: Reference, deep: int = 0) -> bool:
    """The function, or everybody who calls it, puts a model in evaluation mode."""
    if project.function(reference).evaluates:
        return True
    known = callers.get(reference, [])
    return bool(known) and deep < 3 and all(put_to_eval(project, callers, one, deep + 1) for one, _ in known)
