"""The syntax tree of a function that is already loaded, checked against its compiled code.

A file may have changed since it was imported, and a test runner may have rewritten what it read. So the tree is
compiled again, and represents the function only if the result is the very same code.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from hotlap.patch.silenced_warnings import python_unwarned

Definition = ast.FunctionDef | ast.Lambda
LONGEST = 150_000  # characters of a file: reading and compiling it takes a tenth of a second


class Unreadable(Exception):
    """Raised with the reason why the source of a function is not known."""


def definition_of(function: FunctionType) -> Definition:
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        raise Unreadable("its source cannot be read")
    text = "".join(lines)
    if len(text) > LONGEST:
        raise Unreadable("its file is too long to be read in time")
    return _definition(code, text)


@lru_cache(maxsize=1024)
def _definition(code: CodeType, text: str) -> Definition:
    if code not in _compiled(code.co_filename, text):
        raise Unreadable("its source does not match the loaded code")
    statement = _statement_at(code.co_filename, text, code.co_firstlineno)
    found = [node for node in ast.walk(statement) if _may_be(node, code)]
    if len(found) > 1 and len({ast.dump(node) for node in found}) > 1:
        raise Unreadable("several functions are defined on its line")
    if not found or not isinstance(found[0], Definition):
        raise Unreadable("it is not a plain function")
    return found[0]


@lru_cache(maxsize=64)
def _module(filename: str, text: str) -> ast.Module:
    try:
        with python_unwarned():
            return ast.parse(text, filename)
    except SyntaxError as error:
        raise Unreadable("its source cannot be parsed") from error


@lru_cache(maxsize=64)
def _compiled(filename: str, text: str) -> frozenset[CodeType]:
    """Return all code of a file, compiled as a whole because a module's imports affect how its functions compile."""
    with python_unwarned():
        return frozenset(_codes(compile(_module(filename, text), filename, "exec", dont_inherit=True)))


def _statement_at(filename: str, text: str, line: int) -> ast.stmt:
    for statement in _module(filename, text).body:
        if _first_line(statement) <= line <= (statement.end_lineno or 0):
            return statement
    raise Unreadable("its source does not match the loaded code")


def _first_line(node: Any) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min(int(candidate.lineno) for candidate in (node, *decorators))


def _may_be(node: ast.AST, code: CodeType) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name == code.co_name and _first_line(node) == code.co_firstlineno
    return isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
