"""Finds Python loops over the groups of a batch: one iteration per label, each with a mask of the whole batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.terms import MODULE, TENSOR, TENSORS, UNKNOWN
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.samples import mentions

_THROUGH = frozenset("enumerate tqdm list sorted tolist cpu numpy detach".split())
Turn = tuple[ast.AST, ast.expr, ast.expr, list[ast.AST]]  # the loop, its iterable, its target, its body


def group_loops(code: Code) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Yield loops such as `for label in labels.unique(): features[labels == label]`, also as comprehensions, and what
    they iterate over."""
    for node, over, target, body in _turns(code):
        if not code.hot(body[0]) or _runs_models(code, body):
            continue
        names = _names(target)
        by_value = _is_unique(code, over) and any(_compares(code, part, names) for part in body)
        if by_value or (_is_counted(over) and _picks(code, body, names)):
            yield node, over


def _turns(code: Code) -> Iterator[Turn]:
    for node in code.nodes(ast.For):
        assert isinstance(node, ast.For)
        yield node, node.iter, node.target, list(node.body)
    for node in code.nodes(ast.ListComp, ast.GeneratorExp):
        assert isinstance(node, ast.ListComp | ast.GeneratorExp)
        part = node.generators[0]
        if len(node.generators) == 1:
            yield node, part.iter, part.target, [node.elt, *part.ifs]


def _names(target: ast.expr) -> set[str]:
    return {part.id for part in walk(target) if isinstance(part, ast.Name)}


def _is_unique(code: Code, over: ast.expr, deep: int = 0) -> bool:
    """Match torch.unique(x) or x.unique() of something on the device, also through a variable."""
    if isinstance(over, ast.Name) and deep < 3:
        scope = code.function(over) or code.tree
        made = [
            node.value
            for node in walk(scope)
            if isinstance(node, ast.Assign) and node.lineno < over.lineno and over.id in _names(node.targets[0])
        ]
        return bool(made) and _is_unique(code, made[-1], deep + 1)
    if not isinstance(over, ast.Call):
        return False
    if code.full_name(over.func) == "torch.unique" and over.args:
        return code.kind(over.args[0]) in (TENSOR, UNKNOWN)
    if isinstance(over.func, ast.Attribute) and over.func.attr == "unique":
        return code.kind(over.func.value) == TENSOR
    inner = over.func.value if isinstance(over.func, ast.Attribute) else over.args[0] if over.args else None
    return inner is not None and last_name(over.func) in _THROUGH and _is_unique(code, inner, deep + 1)


def _is_counted(over: ast.expr) -> bool:
    """Match `range(classes)`, where the number is not a literal."""
    named = isinstance(over, ast.Call) and last_name(over.func) == "range" and len(over.args) == 1
    return named and not isinstance(over.args[0], ast.Constant)  # type: ignore[attr-defined]


def _compares(code: Code, body: ast.AST, names: set[str]) -> bool:
    """Match `labels == label` and `labels.eq(label)`."""
    return any(_is_mask(code, node, names) for node in walk(body))


def _is_mask(code: Code, node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.NotEq):
        sides = (node.left, node.comparators[0])
        known = code.kind(sides[0]) in TENSORS or (code.kind(sides[0]) == UNKNOWN and _is_counted_out(code, node))
        return _is_element(sides[1], names) and known and not mentions(sides[0], names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("eq", "ne"):
        known = code.kind(node.func.value) in (*TENSORS, UNKNOWN)
        return len(node.args) == 1 and _is_element(node.args[0], names) and known
    return False


def _is_counted_out(code: Code, node: ast.AST) -> bool:
    """Match `(labels == label).nonzero(as_tuple=True)`; only tensors take that argument."""
    method = code.parent(node)
    call = code.parent(method) if isinstance(method, ast.Attribute) and method.attr == "nonzero" else None
    return isinstance(call, ast.Call) and any(word.arg == "as_tuple" for word in call.keywords)


def _is_element(node: ast.expr, names: set[str]) -> bool:
    """Match the element, a value read from it, or an entry at its index: `labels == labels[i]`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    if isinstance(node, ast.Subscript):
        node = node.slice
    return isinstance(node, ast.Name) and node.id in names


def _picks(code: Code, body: list[ast.AST], names: set[str]) -> bool:
    """Match `features[labels == i]` and `(labels == i).nonzero()`: the host must wait for the number of matches."""
    every = [node for part in body for node in walk(part)]
    masks = {
        target.id
        for node in every
        if isinstance(node, ast.Assign) and _is_mask(code, node.value, names)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    picked = [_picking(code, node) for node in every]
    return any(mask is not None and (_is_mask(code, mask, names) or mentions(mask, masks)) for mask in picked)


def _picking(code: Code, node: ast.AST) -> ast.expr | None:
    """Return the mask in `features[mask]` or `mask.nonzero()`."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return node.slice if code.kind(node.value) in (TENSOR, UNKNOWN) else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if code.full_name(node.func) in ("torch.where", "torch.nonzero"):
        return node.args[0] if len(node.args) == 1 else None
    return node.func.value if node.func.attr == "nonzero" else None


def _runs_models(code: Code, body: list[ast.AST]) -> bool:
    """Return whether the body runs a module per group, such as an expert or a head."""
    return any(isinstance(node, ast.Call) and code.callee_kind(node) == MODULE for part in body for node in walk(part))
