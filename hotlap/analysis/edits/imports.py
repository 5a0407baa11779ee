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
    return cst.parse_module(after).visit(_Removal(orphans)).code


class _Removal(cst.CSTTransformer):
    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> Any:
        return self._without(updated_node)

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> Any:
        return updated_node if isinstance(updated_node.names, cst.ImportStar) else self._without(updated_node)

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
