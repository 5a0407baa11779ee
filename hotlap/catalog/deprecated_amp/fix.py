"""Use torch.amp, with the device as the first argument."""

from __future__ import annotations

from typing import Any

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    hints = place.found.hints
    call = place.node(cst.Call)
    if hints["import"]:
        imported = place.node(cst.ImportFrom, hints["import"])
        place.change(imported, lambda node: node.with_changes(module=cst.parse_expression("torch.amp")))
    else:
        place.change(call.func, lambda _: cst.parse_expression(f"torch.amp.{hints['short']}"))
    device = place.quoted(hints["device"])
    place.change(call, lambda node: _with_device(node, device, hints["short"]))


def _with_device(call: Any, device: str, short: str) -> Any:
    """Insert the device first. The old first argument of autocast becomes `enabled=`; a scaler's move by one."""
    first = cst.Arg(cst.parse_expression(device))
    rest = list(call.args)
    if short == "autocast" and rest and rest[0].keyword is None:
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        rest[0] = rest[0].with_changes(keyword=cst.Name("enabled"), equal=equal)
    if rest:
        first = first.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    return call.with_changes(args=[first, *rest])
