"""Evaluate in inference_mode: decorate the function, or wrap the loop where the function does more than evaluate."""

from __future__ import annotations

from typing import Any

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    if "function" in place.found.hints:
        _decorate(place, place.node(cst.FunctionDef, place.found.hints["function"]))
        return
    loop: Any = place.node(cst.For) if place.has_here(cst.For) else place.node(cst.While)
    place.take(loop)
    place.change(loop, _wrapped)


def _decorate(place: Place, function: cst.FunctionDef) -> None:
    if place.first(function, "inference_mode"):
        decorator = cst.Decorator(cst.parse_expression("torch.inference_mode()"))
        place.change(function, lambda node: node.with_changes(decorators=[decorator, *node.decorators]))


def _wrapped(loop: Any) -> cst.With:
    inside = cst.IndentedBlock([loop.with_changes(leading_lines=[])])
    item = cst.WithItem(cst.parse_expression("torch.inference_mode()"))
    return cst.With([item], inside, leading_lines=loop.leading_lines)
