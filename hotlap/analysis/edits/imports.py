"""Removes the imports that a repair has left without a use."""

from __future__ import annotations

import ast
from typing import Any

import libcst as cst

from hotlap.analysis.edits.soundness import unused_imports


def without_orphans(before: str, after: str) -> str:
    """Return the text without the imports that something used before the repair and nothing uses after it."""
    orphans = set(unused_imports(ast.parse(after))) - set(unused_imports(ast.parse(before)))
    if not orphans:
        return after
    left = cst.parse_module(after).visit(_Removal(orphans)).code
    mark = after[: after.startswith("\ufeff")]
    return left if after[len(mark) :].startswith(("\n", "\r")) else mark + left.removeprefix(mark).lstrip("\r\n")


class _Removal(cst.CSTTransformer):
    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        star = isinstance(getattr(updated_node, "names", None), cst.ImportStar)
        if isinstance(updated_node, cst.Import | cst.ImportFrom) and not star:
            return self._without(updated_node)
        return updated_node

    def _without(self, node: Any) -> Any:
        remaining = [alias for alias in node.names if _bound(alias) not in self.names]
        if not remaining:
            return cst.RemoveFromParent()
        if len(remaining) < len(node.names):
            remaining[-1] = remaining[-1].with_changes(comma=node.names[-1].comma)
            return node.with_changes(names=remaining)
        return node


def _bound(alias: cst.ImportAlias) -> str:
    name: Any = alias.evaluated_alias or alias.evaluated_name
    return str(name).partition(".")[0]
