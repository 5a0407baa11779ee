"""Batches copied to the device while the host waits."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.model.scanned import Applicability, Confidence
from hotlap.source import loaders
from hotlap.source.code import Code, keyword, spread
from hotlap.source.positions import position_of
from hotlap.source.rule import Found
from hotlap.source.syncs import shown
from hotlap.source.terms import BATCH, UNKNOWN
from hotlap.source.transfers import transfers

WORDS = (".to(", ".cuda(")
ONLY_HOT = True


def find(code: Code) -> Iterator[Found]:
    for call, moved, _ in transfers(code):
        if keyword(call, "non_blocking") is not None or len(call.args) > 1 or spread(call) or not code.hot(call):
            continue
        confidence = _confidence(code, moved)
        if confidence is None:
            yield from _from_numpy(code, call, moved)
            continue
        hints = _pinning(code, call)
        yield Found(
            call,
            f"`{shown(call)}` copies to the device and waits for the copy {code.heat(call).frequency.value}",
            "copy from pinned memory without waiting: non_blocking=True, and pin_memory=True for the loader",
            Applicability.UNSAFE if _is_mapping(code, moved) else Applicability.SAFE,
            confidence=confidence,
            hints=hints,
        )


def _confidence(code: Code, moved: ast.expr) -> Confidence | None:
    """A batch, or part of one."""
    kind = code.kind(moved)
    if kind == BATCH:
        return Confidence.HIGH
    if kind != UNKNOWN or not isinstance(moved, ast.Name | ast.Subscript | ast.Attribute):
        return None
    root: ast.expr = moved
    while isinstance(root, ast.Subscript | ast.Attribute):
        root = root.value
    loop = code.batch_loop(moved)
    if not isinstance(root, ast.Name) or not isinstance(loop, ast.For):
        return None
    given = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    return Confidence.MEDIUM if _outer_name(code, root) in given else None


def _outer_name(code: Code, name: ast.Name) -> str:
    """In a comprehension, the name that is gone over: `batch` of `[x.to(device) for x in batch]`, however deep."""
    found = name.id
    for outer in code.ancestors(name):
        if isinstance(outer, ast.stmt):
            break
        for part in getattr(outer, "generators", ()):
            if any(isinstance(one, ast.Name) and one.id == found for one in ast.walk(part.target)):
                names = [one.id for one in ast.walk(part.iter) if isinstance(one, ast.Name)]
                found = names[0] if names else found
    return found


def _from_numpy(code: Code, call: ast.Call, moved: ast.expr) -> Iterator[Found]:
    """`torch.from_numpy(x).float().to(device)`: the copy reads pageable memory, and the host waits for it."""
    while isinstance(moved, ast.Call) and isinstance(moved.func, ast.Attribute):
        if code.full_name(moved.func) == "torch.from_numpy":
            yield Found(
                call,
                f"`{shown(call)}` copies from pageable memory and waits for the copy {code.heat(call).frequency.value}",
                "pin it first: .pin_memory().to(device, non_blocking=True); or keep the data on the device",
                confidence=Confidence.MEDIUM,
            )
            return
        moved = moved.func.value


def _is_mapping(code: Code, moved: ast.expr) -> bool:
    """A whole batch that is indexed by names: an object of some library, whose `.to` may take no such argument."""
    if not isinstance(moved, ast.Name):
        return False
    scope = code.function(moved) or code.tree
    return any(_names_part(node, moved.id) for node in ast.walk(scope))


def _names_part(node: ast.AST, name: str) -> bool:
    """`batch["x"]` or `**batch`."""
    if isinstance(node, ast.Subscript):
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return isinstance(key, str) and isinstance(node.value, ast.Name) and node.value.id == name
    spread_out = isinstance(node, ast.keyword) and node.arg is None
    return spread_out and isinstance(node.value, ast.Name) and node.value.id == name  # type: ignore[attr-defined]


def _pinning(code: Code, call: ast.Call) -> dict[str, str]:
    """The loader to pin, where it is made in this file and says nothing about it."""
    loop = code.batch_loop(call)
    made = loaders.made_at(code, loop.iter) if isinstance(loop, ast.For) else None
    if made is None or not loaders.loader(code, made).lacks("pin_memory"):
        return {}
    return {"loader": position_of(made, code.lines)}
