"""What expressions need to know of the file they stand in."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from hotlap.source.facts import Stack
from hotlap.source.terms import Term

if TYPE_CHECKING:
    from hotlap.source.expressions import Expressions


class Reader:
    """What expressions need to know of their file. The real one is in flow.py."""

    keep: dict[ast.AST, Term] | None = None
    places: dict[ast.AST, Stack]

    def lookup(self, name: str) -> Term:
        raise NotImplementedError

    def define_lambda(self, node: ast.Lambda, scope: Expressions) -> Term:
        raise NotImplementedError

    def assign_attribute(self, scope: Expressions, target: ast.Attribute, term: Term) -> None:
        raise NotImplementedError

    def register(self, scope: Expressions, node: ast.Call) -> None:
        raise NotImplementedError
