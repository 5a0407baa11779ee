"""Tells whether a loader is iterated over more than once: in an epoch loop, or by a function called every epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum

from hotlap.analysis.frequency.heat import Side
from hotlap.analysis.frequency.hotness import LoopKind
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Repeated, last_name
from hotlap.analysis.queries.loaders import Loader
from hotlap.records.scan_finding import Frequency

_AROUND = frozenset("enumerate tqdm iter zip track trange progress_bar list cycle islice len next".split())
_ONCE_HOOKS = frozenset(("test_dataloader", "predict_dataloader"))  # of Lightning, called once after the training


class Use(Enum):
    ONCE = "gone through once"
    AGAIN = "gone through again and again, or nobody knows"
    NONE = "only looked at"


def is_once(code: Code, loader: Loader) -> bool:
    """Return whether every visible use iterates over the loader only once: a prediction, an export, a statistic."""
    function = code.function(loader.call)
    if function is not None and function.name in _ONCE_HOOKS:
        return True
    made = _given_out(code, loader.call)
    return all(_is_used_once(code, call) for call in made) if made else _is_used_once(code, loader.call)


def _given_out(code: Code, call: ast.Call) -> list[ast.Call]:
    """Return the calls of the function that returns the loader, if all of them are in its file."""
    function, known = code.function(call), code.reference(call)
    if function is None or known is None or not isinstance(code.parent(call), ast.Return):
        return []
    callers = code.hotness.callers.get(known, ())
    here = [
        candidate
        for candidate in code.calls(function.name)
        if known in code.project.targets(code.asked(candidate.func), code.path)
    ]
    return here if len(here) == len(callers) else []


def _is_used_once(code: Code, call: ast.Call) -> bool:
    if _is_looked_at(code, call):
        return not _repeats(code, call)
    parent = _outside(code, call)
    if isinstance(parent, ast.For) and parent.iter in (call, *_chain(code, call)):
        return not _repeats(code, parent)
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return False
    target = parent.targets[0]
    if not isinstance(target, ast.Name):
        return False
    uses = [_use(code, node) for node in _loads(code, call, target.id)]
    return Use.ONCE in uses and Use.AGAIN not in uses


def is_made_anew(code: Code, loader: Loader) -> bool:
    """Return whether each loader made here is iterated over only once, so that nothing it keeps is ever reused."""
    around = list(code.loops(loader.call))
    outside = _outside(code, loader.call)
    if isinstance(outside, ast.For):
        return True
    target = outside.targets[0] if isinstance(outside, ast.Assign) and len(outside.targets) == 1 else None
    if not isinstance(target, ast.Name) or (code.function(loader.call) is None and not around):
        return False
    uses = [node for node in _loads(code, loader.call, target.id) if _use(code, node) is not Use.NONE]
    if uses and _is_renewed(code, loader, target.id) and all(_is_taken_from(code, node) for node in uses):
        return True
    return bool(uses) and all(_is_for_one_turn(code, node, around) for node in uses)


def _is_taken_from(code: Code, node: ast.Name) -> bool:
    """Match `iter(loader)` and `next(loader)`."""
    parent = code.parent(node)
    return isinstance(parent, ast.Call) and last_name(parent.func) in ("iter", "next")


def _is_renewed(code: Code, loader: Loader, name: str) -> bool:
    """Match a function that sets the same name to another loader when this one is exhausted."""
    scope = code.function(loader.call)
    made = [
        node
        for node in walk(scope or code.tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and getattr(node.targets[0], "id", "") == name
    ]
    return sum(last_name(node.value.func) == last_name(loader.call.func) for node in made) > 1  # type: ignore[attr-defined]


def _is_for_one_turn(code: Code, node: ast.Name, around: list[Repeated]) -> bool:
    """Match a loop over the loader, or a call that gets it, in the same turn of the loop that makes it."""
    outside = _outside(code, node)
    if not isinstance(outside, ast.For) and not (around and isinstance(outside, ast.Call)):
        return False
    return list(code.loops(outside)) == around


def is_tried_once(code: Code, loader: Loader) -> bool:
    """Return whether a loader that no training iterates over is used once only."""
    made = _given_out(code, loader.call) or [loader.call]
    return not any(_is_trained_on(code, call) for call in made) and is_once(code, loader)


def _is_trained_on(code: Code, call: ast.Call) -> bool:
    loops = [_outside(code, call)]
    if isinstance(loops[0], ast.Assign) and isinstance(loops[0].targets[0], ast.Name):
        loops = [_outside(code, node) for node in _loads(code, call, loops[0].targets[0].id)]
    return any(isinstance(loop, ast.For) and code.heat(loop.body[0]).side is Side.TRAIN for loop in loops)


def _outside(code: Code, node: ast.AST) -> ast.AST | None:
    """Return what the expression is part of, beyond progress bars and their like."""
    parent = code.parent(node)
    while isinstance(parent, ast.Call) and node in parent.args and last_name(parent.func) in _AROUND:
        node, parent = parent, code.parent(parent)
    return parent


def _chain(code: Code, node: ast.AST) -> Iterator[ast.AST]:
    parent = code.parent(node)
    while isinstance(parent, ast.Call):
        yield parent
        parent = code.parent(parent)


def _loads(code: Code, made: ast.AST, name: str) -> Iterator[ast.Name]:
    """Yield the reads of a name, in its function or for globals in the whole file, also of a progress bar around it."""
    scope = code.function(made) or code.tree
    for node in walk(scope):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            bar = _named_around(code, node)
            if bar and bar != name:
                if _is_iterator(code, node) and _repeats(code, node):
                    yield node  # a new iterator each time
                yield from _loads(code, node, bar)
            else:
                yield node


def _is_iterator(code: Code, node: ast.Name) -> bool:
    parent = code.parent(node)
    return isinstance(parent, ast.Call) and last_name(parent.func) == "iter"


def _named_around(code: Code, node: ast.Name) -> str:
    """Return `bar` for `bar = tqdm(loader)`."""
    outside = _outside(code, node)
    target = outside.targets[0] if isinstance(outside, ast.Assign) and outside.value is not node else None
    return target.id if isinstance(target, ast.Name) and isinstance(code.parent(node), ast.Call) else ""


def _use(code: Code, node: ast.Name) -> Use:
    parent = code.parent(node)
    if isinstance(parent, ast.Attribute):
        return Use.NONE
    if isinstance(parent, ast.Call) and last_name(parent.func) == "len":
        return Use.NONE
    if isinstance(parent, ast.Call) and last_name(parent.func) == "next":
        return Use.ONCE  # of an iterator, whose making decides
    if _is_looked_at(code, node):
        return Use.AGAIN if _repeats(code, node) else Use.ONCE
    outside = _outside(code, node)
    if isinstance(outside, ast.For | ast.comprehension):
        return Use.AGAIN if _repeats(code, outside) else Use.ONCE
    if isinstance(outside, ast.Call) and isinstance(outside.func, ast.Name | ast.Attribute):
        return _given(code, outside)
    return Use.AGAIN


def is_glimpsed(code: Code, loader: Loader) -> bool:
    """Return whether only a single batch is ever taken from the loader, as an example or demonstration."""
    if _is_looked_at(code, loader.call):
        return not _repeats(code, loader.call)
    parent = code.parent(loader.call)
    target = parent.targets[0] if isinstance(parent, ast.Assign) and len(parent.targets) == 1 else None
    if not isinstance(target, ast.Name):
        return False
    uses = list(_loads(code, loader.call, target.id))
    return bool(uses) and all(
        (_is_looked_at(code, node) and not _repeats(code, node)) or _is_left_early(code, node) for node in uses
    )


def _is_left_early(code: Code, node: ast.Name) -> bool:
    """Match a loop that draws its batches with matplotlib and is left early, as at the end of a dataset's file, and one
    that is left after its first batch."""
    loop = _outside(code, node)
    if isinstance(loop, ast.For) and isinstance(loop.body[-1], ast.Break):
        return True
    if not isinstance(loop, ast.For) or _repeats(code, loop):
        return False
    inside = list(walk(loop))
    drawn = any(isinstance(part, ast.Call) and code.full_name(part.func).startswith("matplotlib.") for part in inside)
    return drawn and any(isinstance(part, ast.Break) for part in inside)


def _is_looked_at(code: Code, node: ast.AST) -> bool:
    """Match `next(iter(loader))`, which takes one batch."""
    parent = code.parent(node)
    taken = code.parent(parent) if isinstance(parent, ast.Call) and last_name(parent.func) == "iter" else None
    return isinstance(taken, ast.Call) and last_name(taken.func) == "next"


def _repeats(code: Code, node: ast.AST) -> bool:
    heat = code.heat(node)
    return heat.frequency.rank >= Frequency.EPOCH.rank or heat.frequency is Frequency.RARE or any(code.loops(node))


def _given(code: Code, call: ast.Call) -> Use:
    """Judge a loader passed to a function of the project by the loops over batches in that function."""
    targets = code.project.targets(code.asked(call.func), code.path)
    if not targets or _repeats(code, call):
        return Use.AGAIN
    for target in targets:
        function, kinds = code.project.function(target), code.hotness.kinds.get(target, [])
        batches = [
            loop for loop, kind in zip(function.loops, kinds, strict=True) if kind >= LoopKind.BATCH_LIKELY
        ]  # fmt: skip
        if not batches or any(loop.parent >= 0 or loop.trains for loop in batches) or LoopKind.EPOCH in kinds:
            return Use.AGAIN
    return Use.ONCE
