"""Tells whether a function runs without recording a graph, or with a model in evaluation mode."""

from __future__ import annotations

from hotlap.analysis.frequency.steps import Callers
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.project import Project

_QUIET_HOOKS = ("on_validation_", "on_test_", "on_predict_", "validation_step", "test_step", "predict_step")


def under_no_grad(project: Project, callers: Callers, reference: Reference, deep: int = 0) -> bool:
    """Return whether the function, or all of its callers, record no graph."""
    if project.function(reference).no_grad or is_quiet_hook(project, reference):
        return True
    known = callers.get(reference, [])
    if not known or deep > 4:
        return False
    return all(call.no_grad or under_no_grad(project, callers, caller, deep + 1) for caller, call in known)


def is_quiet_hook(project: Project, reference: Reference) -> bool:
    """Match Lightning's evaluation hooks; Lightning records no graph during a whole evaluation."""
    owner, _, name = reference.name.rpartition(".")
    known = project.files[reference.path].classes.get(owner) if name.startswith(_QUIET_HOOKS) else None
    return known is not None and any("lightning" in base.lower() for base in project.base_names(reference.path, known))


def put_to_eval(project: Project, callers: Callers, reference: Reference, deep: int = 0) -> bool:
    """Return whether the function, or all of its callers, put a model in evaluation mode."""
    if project.function(reference).evaluates:
        return True
    known = callers.get(reference, [])
    return bool(known) and deep < 3 and all(put_to_eval(project, callers, caller, deep + 1) for caller, _ in known)
