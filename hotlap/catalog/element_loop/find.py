"""Python loops over the elements of a tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.model.scanned import Confidence
from hotlap.source.code import Code, last_name
from hotlap.source.elements import (
    ElementLoop,
    counts,
    element_loops,
    is_scalar_work,
    is_sequential,
    is_worked_on,
    reads_elements,
)
from hotlap.source.groups import group_loops
from hotlap.source.rule import Found
from hotlap.source.samples import only_shows, per_sample
from hotlap.source.syncs import shown
from hotlap.source.terms import NUMPY, TENSOR, TENSORS

WORDS = ("for ",)
ONLY_HOT = True
_EACH = frozenset(
    f"torch.{name}"
    for name in "logical_or logical_and logical_xor maximum minimum add sub mul div where eq ne gt lt ge le abs "
    "clamp exp log sqrt pow fmod atan2".split()
)


def find(code: Code) -> Iterator[Found]:
    yield from _gathered(code)
    grouped = set()
    for node, over in group_loops(code):
        grouped.add(node)
        yield Found(
            over if isinstance(node, ast.For) else node,
            f"the loop over `{shown(over, 40)}` makes a mask of the whole batch for every group of it",
            "work on all groups at once: F.one_hot, index_add, scatter_reduce or bincount",
            heat=code.heat(node),
            confidence=Confidence.MEDIUM,
        )
    for found in element_loops(code):
        heat = code.heat(found.loop.body[0])
        if (
            not heat.hot
            or found.fixed
            or found.loop in grouped
            or counts(found)
            or is_sequential(found)
            or only_shows(found.loop.body)
            or _is_asked(code, found)
        ):
            continue
        scalar = found.written or is_scalar_work(code, found) or _is_rowwise(code, found)
        if not scalar and (
            is_worked_on(code, found)
            or not (reads_elements(found, single=True) or _picks_by_mask(code, found))
            or not _on_device(code, found)
        ):
            continue
        yield Found(
            found.loop.iter,
            f"the loop over `{shown(found.arrays[0], 40)}` goes through a tensor element by element in Python",
            "work on the whole tensor: comparisons, torch.where, masks and sums run at once",
            heat=code.heat(found.loop),
            confidence=_confidence(code, found, scalar),
        )


def _gathered(code: Code) -> Iterator[Found]:
    """`torch.stack([table[i] for i in indices])`: each index is read from the device by itself."""
    for node in code.nodes(ast.ListComp):
        assert isinstance(node, ast.ListComp)
        part, picked = node.generators[0], node.elt
        if len(node.generators) > 1 or part.ifs or not isinstance(picked, ast.Subscript) or not code.hot(node):
            continue
        same = isinstance(part.target, ast.Name) and ast.unparse(picked.slice) == part.target.id
        if same and code.kind(part.iter) == TENSOR and code.kind(picked.value) in TENSORS:
            yield Found(
                node,
                f"`{shown(picked, 40)}` is picked for one index of `{shown(part.iter, 40)}` after the other",
                f"index with the whole tensor: {shown(picked.value, 40)}[{shown(part.iter, 40)}]",
            )


def _confidence(code: Code, found: ElementLoop, scalar: bool) -> Confidence | None:
    """Elements of an array cost a tenth of a tensor's: worth a word where it is done for every sample."""
    if all(code.kind(one) == NUMPY for one in found.arrays):
        return Confidence.MEDIUM if per_sample(code, found.loop) else Confidence.LOW
    return None if scalar else Confidence.MEDIUM


def _is_rowwise(code: Code, found: ElementLoop) -> bool:
    """`out[i] = torch.logical_or(x[i], x[i + 1])` and nothing else: the same on all rows at once."""
    statement = found.loop.body[0]
    if len(found.loop.body) > 1 or not isinstance(statement, ast.Assign) or not found.index:
        return False
    target, value = statement.targets[0], statement.value
    if not isinstance(target, ast.Subscript) or code.kind(target.value) not in TENSORS:
        return False
    named = isinstance(target.slice, ast.Name) and target.slice.id == found.index
    made = isinstance(value, ast.Call) and code.full_name(value.func) in _EACH
    parts = value.args if isinstance(value, ast.Call) else []
    sources = [one.value for one in parts if isinstance(one, ast.Subscript)]
    apart = all(ast.unparse(one) != ast.unparse(target.value) for one in sources)  # else a turn needs the one before
    return named and made and apart and len(sources) + sum(isinstance(one, ast.Constant) for one in parts) == len(parts)


def _is_asked(code: Code, found: ElementLoop) -> bool:
    """Under `if isinstance(x, tuple)`: it is a tuple there."""
    names = {ast.unparse(one) for one in found.arrays}
    return any(
        isinstance(one, ast.If)
        and any(
            isinstance(part, ast.Call) and last_name(part.func) == "isinstance" and ast.unparse(part.args[0]) in names
            for part in ast.walk(one.test)
        )
        for one in code.ancestors(found.loop)
    )


def _picks_by_mask(code: Code, found: ElementLoop) -> bool:
    """`row[mask[i] == 0].max()`: how many are picked, only the device knows, so the host waits in every turn."""
    return any(
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Compare) and code.kind(node.value) == TENSOR
        for statement in found.loop.body
        for node in ast.walk(statement)
    )


def _on_device(code: Code, found: ElementLoop) -> bool:
    return all(code.kind(one) == TENSOR for one in found.arrays)
