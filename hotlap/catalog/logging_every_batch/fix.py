"""Put the line under `if step % 100 == 0`, and add a counter to the loop if it has none."""

from __future__ import annotations

from typing import Any

import libcst as cst

from hotlap.analysis.edits.place import CannotFix, Place


def fix(place: Place) -> None:
    counter = place.found.hints["counter"]
    line = place.line(place.node(cst.Call))
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        raise CannotFix("the statement shares its line")
    if place.found.hints["loop"]:
        loop = place.node(cst.For, place.found.hints["loop"])
        if place.first(loop, "counted"):
            place.change(loop, lambda node: _counted(node, counter))
    place.take(line)
    place.change(line, lambda node: _throttled(node, counter))


def _throttled(line: Any, counter: str) -> cst.If:
    test = cst.parse_expression(f"{counter} % 100 == 0")
    return cst.If(test, cst.IndentedBlock([line.with_changes(leading_lines=[])]), leading_lines=line.leading_lines)


def _counted(loop: Any, counter: str) -> Any:
    target = loop.target
    if isinstance(target, cst.Tuple) and not target.lpar:
        target = target.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    both = cst.Tuple([cst.Element(cst.Name(counter)), cst.Element(target)])
    return loop.with_changes(
        target=both.with_changes(lpar=[], rpar=[]), iter=cst.Call(cst.Name("enumerate"), [cst.Arg(loop.iter)])
    )
