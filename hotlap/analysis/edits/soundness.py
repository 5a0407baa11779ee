"""Tells what a repair would break: names that nothing binds, imports and values that nothing uses, empty blocks."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections import Counter
from collections.abc import Iterator

from hotlap.analysis.parse.tree import walk

_GIVEN = frozenset(dir(builtins)) | frozenset(
    "__file__ __name__ __doc__ __path__ __package__ __spec__ __loader__ __builtins__ __annotations__ __class__ "
    "__module__ __qualname__ __dict__ __debug__ reveal_type WindowsError".split()
)
_WORD = re.compile(r"\w+")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def flaws(before: str, after: str) -> list[str]:
    """Return what is wrong with the text after a repair and was not before; empty if the repair is sound."""
    try:
        old, new = ast.parse(before), ast.parse(after)
        unbound = _unbound(after) - _unbound(before)
    except (SyntaxError, ValueError, RecursionError) as error:
        return [f"it is not valid Python: {error}"]
    found = [f"{name} is not bound" for name in sorted(unbound)]
    found += [f"{name} is read before it is set" for name in sorted(set((_early(new) - _early(old)).elements()))]
    found += [f"{name} is left unused" for name in sorted(set(unused_imports(new)) - set(unused_imports(old)))]
    found += [f"{name} is set and never read" for _, name in sorted(_unread(new) - _unread(old))]
    if _passes(new) > _passes(old):
        found.append("a block is left empty")
    return found


def unused_imports(tree: ast.Module) -> dict[str, ast.Import | ast.ImportFrom]:
    """Return the names that the file imports and neither reads nor exports, with their imports.

    A name that is a word of a text may be an annotation or an export; prose in a docstring uses nothing.
    """
    bound = {
        (alias.asname or alias.name).partition(".")[0]: node
        for node in walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    prose = {node.value for node in walk(tree) if isinstance(node, ast.Expr)}
    for node in walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            bound.pop(node.id, None)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for name in () if node in prose else _WORD.findall(node.value):
                bound.pop(name, None)
    return bound


def _unbound(text: str) -> set[str]:
    """Return the names that are read as globals or builtins and are neither."""
    top = symtable.symtable(text, "", "exec")
    tables = list(_tables(top))
    bound = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    bound |= {symbol.get_name() for symbol in top.get_symbols() if symbol.is_namespace()}
    read: set[str] = set()
    for table in tables:
        for symbol in table.get_symbols():
            if symbol.is_declared_global() and (symbol.is_assigned() or symbol.is_imported()):
                bound.add(symbol.get_name())
            elif symbol.is_referenced() and (symbol.is_global() or table is top):
                read.add(symbol.get_name())
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in walk(ast.parse(text))):
        return set()
    return read - bound - _GIVEN


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _early(tree: ast.Module) -> Counter[str]:
    """Return the names that a function reads above the first line on which it sets them, and how often."""
    found: Counter[str] = Counter()
    for scope in (tree, *(node for node in walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))):
        given = _arguments(scope)
        first: dict[str, int] = {}
        nodes = list(_own(scope))
        for node in nodes:
            for name in _set_by(node):
                first[name] = min(node.lineno, first.get(name, node.lineno))  # type: ignore[attr-defined]
            if isinstance(node, ast.Global | ast.Nonlocal):
                given |= set(node.names)
        found.update(
            node.id
            for node in nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.lineno < first.get(node.id, 0)
            if node.id not in given
        )
    return found


def _set_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    name = getattr(node, "name", None)
    named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler)
    return [name] if named and name else []


def _arguments(scope: ast.AST) -> set[str]:
    arguments = getattr(scope, "args", None)
    return {node.arg for node in walk(arguments) if isinstance(node, ast.arg)} if arguments is not None else set()


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope without those of the functions, classes and comprehensions in it."""
    waiting = list(getattr(scope, "body", ()))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*_SCOPES, *_COMPREHENSIONS)):
            waiting.extend(ast.iter_child_nodes(node))


def _unread(tree: ast.Module) -> set[tuple[str, str]]:
    """Return the names that a function sets by a plain assignment and never reads, with the name of the function."""
    found = set()
    for function in walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        names = [node for node in walk(function) if isinstance(node, ast.Name)]
        read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        shared = {name for node in walk(function) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
        plain = {
            target.id
            for node in walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        found |= {(function.name, name) for name in plain - read - shared}
    return found


def _passes(tree: ast.Module) -> int:
    return sum(isinstance(node, ast.Pass) for node in walk(tree))
