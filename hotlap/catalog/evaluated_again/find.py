"""A second pass over the same data in the same epoch, to evaluate what was computed already."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from hotlap.analysis.queries.code import Code
from hotlap.analysis.queries.passes import Pass, other_arguments, passes
from hotlap.analysis.queries.programs import is_test
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Confidence

WORDS = ("epoch", "train", "evaluat", "validat")


def find(code: Code) -> Iterator[Found]:
    if is_test(code.path):
        return
    for _, made in passes(code):
        for number, again in enumerate(made):
            earlier = made[:number]
            if again.trains or not again.no_grad or again.loader in _again_trained(made[number + 1 :]):
                continue
            if any(one.loader == again.loader and one.trains for one in earlier):
                yield _found(code, again, f"`{again.loader}`, which this epoch has trained on, is evaluated once more")
            elif any(_same(one, again) and not _instead(code, one, again) for one in _since_training(earlier)):
                yield _found(code, again, f"`{again.loader}` is evaluated a second time in the epoch")


def _again_trained(later: Sequence[Pass]) -> set[str]:
    """Data that is looked at before it is trained on: labels or weights are made of it."""
    return {one.loader for one in later if one.trains}


def _since_training(earlier: Sequence[Pass]) -> Sequence[Pass]:
    """Passes after the last one that changed the weights."""
    last = max((number for number, one in enumerate(earlier) if one.trains), default=-1)
    return earlier[last + 1 :]


def _same(one: Pass, other: Pass) -> bool:
    """The same data and, as far as the calls say, the same model."""
    if one.loader != other.loader or not one.no_grad:
        return False
    if one.function == other.function:
        return other_arguments(one) == other_arguments(other)
    first, second = other_arguments(one), other_arguments(other)
    return bool(first & second) or not first or not second


def _instead(code: Code, one: Pass, other: Pass) -> bool:
    """One in a branch, the other in the other branch of the same question: only one of them is made."""
    before: list[ast.AST] = [one.node, *code.ancestors(one.node)]
    after: list[ast.AST] = [other.node, *code.ancestors(other.node)]
    return any(
        isinstance(choice, ast.If)
        and choice in after
        and any(part in before for part in choice.body) != any(part in after for part in choice.body)
        for choice in before
    )


def _found(code: Code, one: Pass, message: str) -> Found:
    return Found(
        one.node,
        message,
        "compute it in the pass that is made anyway, on the device, and read it once",
        heat=code.heat(one.node),
        confidence=Confidence.MEDIUM,
    )
