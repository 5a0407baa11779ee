"""What expressions need to know of the file they stand in."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from hotlap.analysis.parse.facts import Function, Stack, Summary
from hotlap.analysis.parse.terms import Term

if TYPE_CHECKING:
    from hotlap.analysis.parse.body import Body
    from hotlap.analysis.parse.call_values import Calling
    from hotlap.analysis.parse.expressions import Expressions


class Reader:
    """What expressions need to know of their file. The real one is in flow.py."""

    keep: dict[ast.AST, Term] | None = None
    places: dict[ast.AST, Stack]

    @property
    def names(self) -> dict[str, Term]:
        """Of the file itself."""
        raise NotImplementedError

    def lookup(self, name: str) -> Term:
        raise NotImplementedError

    def properties(self, owner: str) -> frozenset[str]:
        """Of a class of the file."""
        raise NotImplementedError

    def define_lambda(self, node: ast.Lambda, scope: Expressions) -> Term:
        raise NotImplementedError

    def assign_attribute(self, scope: Calling, target: ast.Attribute, term: Term) -> None:
        raise NotImplementedError

    def put_attribute(self, scope: Calling, container: ast.Attribute, term: Term) -> None:
        """`self.table[key] = …`."""
        raise NotImplementedError

    def register(self, scope: Calling, node: ast.Call) -> None:
        raise NotImplementedError


class FileState(Reader):
    """What statements need to know of it besides."""

    summary: Summary
    within: dict[ast.AST, Function]

    def define(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Body) -> None:
        raise NotImplementedError

    def define_class(self, node: ast.ClassDef, scope: Body) -> None:
        raise NotImplementedError
