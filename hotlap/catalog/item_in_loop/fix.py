"""Collect the values on the device and read them once, after the loop."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import CannotFix, Place


def fix(place: Place) -> None:
    hints = place.found.hints
    call = place.node(cst.Call)
    if not isinstance(call.func, cst.Attribute):
        raise CannotFix("it is not .item()")
    expression = _with_conversion(place, call)
    tensor = place.text(call.func.value)
    on_device = tensor if hints["whole"] or tensor.endswith(".detach()") else f"{tensor}.detach()"
    if hints["listed"]:
        on_device += ".clone()"  # a change in place, or the next replay of a graph, must not alter it
    elif not hints["whole"] and hints["double"]:
        on_device += ".double()"  # the precision of a Python sum
    place.replace(expression, on_device)
    _read_once(place, hints["name"], "int" if hints["whole"] else "float")


def _with_conversion(place: Place, call: cst.Call) -> cst.Call:
    """Include int() or float() around .item(): it would wait as well."""
    argument = place.parent(call)
    outer = place.parent(argument) if isinstance(argument, cst.Arg) else None
    if isinstance(outer, cst.Call) and isinstance(outer.func, cst.Name) and outer.func.value in ("int", "float"):
        return outer
    return call


def _read_once(place: Place, name: str, kind: str) -> None:
    hints = place.found.hints
    loop = (
        place.node(cst.For, hints["loop"])
        if place.has(cst.For, hints["loop"])
        else place.node(cst.While, hints["loop"])
    )
    text = f"{name} = torch.stack({name}).tolist() if {name} else []" if hints["listed"] else f"{name} = {kind}({name})"
    place.after(loop, text)
