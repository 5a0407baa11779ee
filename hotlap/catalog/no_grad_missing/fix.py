"""Decorate the function with inference_mode."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    function = place.node(cst.FunctionDef, place.found.hints["function"])
    if place.first(function, "inference_mode"):
        decorator = cst.Decorator(cst.parse_expression("torch.inference_mode()"))
        place.change(function, lambda node: node.with_changes(decorators=[decorator, *node.decorators]))
