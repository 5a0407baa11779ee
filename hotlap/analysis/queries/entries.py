"""Tells whether code runs when a file is merely imported, as a spawned worker process does."""

from __future__ import annotations

import ast

from hotlap.analysis.names.classes import Reference
from hotlap.analysis.parse.features import SCRIPT
from hotlap.analysis.queries.code import Code, spread


def may_start(code: Code, call: ast.Call) -> bool:
    """Return whether a loader made here may start workers: each of them imports the script, which must not train."""
    reference = code.reference(call)
    if reference is None or spread(call):
        return False
    if not reference.name:
        return _is_guarded(code, call)
    leading = _leading(code, reference)
    return all(_is_script(code, top, leading) for top in leading if not top.name)


def _is_guarded(code: Code, node: ast.AST) -> bool:
    return any(isinstance(outer, ast.If) and "__main__" in ast.unparse(outer.test) for outer in code.ancestors(node))


def _leading(code: Code, reference: Reference) -> set[Reference]:
    """Return what leads to a function; a file's own code, outside of all functions, has no name."""
    found, waiting = {reference}, [reference]
    while waiting:
        for caller, _ in code.hotness.callers.get(waiting.pop(), ()):
            if caller not in found:
                found.add(caller)
                waiting.append(caller)
    return found


def _is_script(code: Code, top: Reference, leading: set[Reference]) -> bool:
    """Return whether a file has a main guard and, if it is this one, calls what leads there under it."""
    if SCRIPT not in code.project.files[top.path].uses:
        return False
    return top.path != code.path or all(
        _is_guarded(code, call)
        for call in code.all_calls()
        if code.function(call) is None and isinstance(call.func, ast.Name | ast.Attribute)
        if leading.intersection(code.project.targets(code.asked(call.func), code.path))
    )
