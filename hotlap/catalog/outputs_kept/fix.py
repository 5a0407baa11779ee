"""Keep the value without its graph."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import CannotFix, Place

_SIMPLE: tuple[type[cst.CSTNode], ...] = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)
_COMPOUND: tuple[type[cst.CSTNode], ...] = (cst.BinaryOperation, cst.UnaryOperation, cst.IfExp)


def fix(place: Place) -> None:
    for kind in (*_SIMPLE, *_COMPOUND):
        if place.has_here(kind):
            node = place.node(kind)
            text = place.text(node)
            place.replace(node, f"{text}.detach()" if kind in _SIMPLE else f"({text}).detach()")
            return
    raise CannotFix("it is not an expression of one value")
