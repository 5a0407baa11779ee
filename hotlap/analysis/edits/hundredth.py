"""Does something in every hundredth turn of a loop only, with a counter of its own if the loop has none."""

from __future__ import annotations

from typing import Any

import libcst as cst

from hotlap.analysis.edits.place import CannotFix, Place


def counter(place: Place) -> str:
    """Return the name of the loop's counter, and let the loop count if it does not."""
    name = place.found.hints["counter"]
    if place.found.hints["loop"]:
        loop = place.node(cst.For, place.found.hints["loop"])
        if place.first(loop, "counted"):
            place.change(loop, lambda node: _counted(node, name))
    return name


def throttle(place: Place, line: cst.CSTNode) -> None:
    """Put a statement under `if step % 100 == 0`."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        raise CannotFix("the statement shares its line")
    name = counter(place)
    place.take(line)
    place.change(line, lambda node: _throttled(node, name))


def _throttled(line: Any, name: str) -> cst.If:
    test = cst.parse_expression(f"{name} % 100 == 0")
    return cst.If(test, cst.IndentedBlock([line.with_changes(leading_lines=[])]), leading_lines=line.leading_lines)


def _counted(loop: Any, name: str) -> Any:
    target = loop.target
    if isinstance(target, cst.Tuple) and not target.lpar:
        target = target.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    both = cst.Tuple([cst.Element(cst.Name(name)), cst.Element(target)])
    return loop.with_changes(
        target=both.with_changes(lpar=[], rpar=[]), iter=cst.Call(cst.Name("enumerate"), [cst.Arg(loop.iter)])
    )
