"""A second evaluation of the same data in the same epoch, which repeats what has been computed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from hotlap.analysis.queries.code import Code
from hotlap.analysis.queries.passes import Pass, other_arguments, passes
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Confidence

WORDS = ("epoch", "train", "evaluat", "validat")
TESTS = False


def find(code: Code) -> Iterator[Found]:
    for _, group in passes(code):
        for number, again in enumerate(group):
            earlier = group[:number]
            if again.trains or not again.no_grad or again.loader in _trained_later(group[number + 1 :]):
                continue
            if any(previous.loader == again.loader and previous.trains for previous in earlier):
                yield _found(
                    code, again, f"`{again.loader}` is evaluated again, though this epoch has just trained on it"
                )
            elif any(
                _same(previous, again) and not _are_exclusive(code, previous, again)
                for previous in _since_training(earlier)
            ):
                yield _found(code, again, f"`{again.loader}` is evaluated a second time in the same epoch")


def _trained_later(later: Sequence[Pass]) -> set[str]:
    """Return the loaders that are trained on later: a pass over them before may compute labels or weights."""
    return {following.loader for following in later if following.trains}


def _since_training(earlier: Sequence[Pass]) -> Sequence[Pass]:
    """Return the passes after the last one that changed the weights."""
    last = max((number for number, previous in enumerate(earlier) if previous.trains), default=-1)
    return earlier[last + 1 :]


def _same(first: Pass, second: Pass) -> bool:
    """Tell whether both passes use the same data and, as far as the calls show, the same model."""
    if first.loader != second.loader or not first.no_grad:
        return False
    if first.function == second.function:
        return other_arguments(first) == other_arguments(second)
    first_arguments, second_arguments = other_arguments(first), other_arguments(second)
    return bool(first_arguments & second_arguments) or not first_arguments or not second_arguments


def _are_exclusive(code: Code, first: Pass, second: Pass) -> bool:
    """Tell whether the passes are in different branches of the same `if`, so that only one of them runs."""
    before: list[ast.AST] = [first.node, *code.ancestors(first.node)]
    after: list[ast.AST] = [second.node, *code.ancestors(second.node)]
    return any(
        isinstance(choice, ast.If)
        and choice in after
        and any(statement in before for statement in choice.body)
        != any(statement in after for statement in choice.body)
        for choice in before
    )


def _found(code: Code, again: Pass, message: str) -> Found:
    return Found(
        again.node,
        message,
        "compute the metric on the device in the pass that runs anyway, and read it once",
        heat=code.heat(again.node),
        confidence=Confidence.MEDIUM,
    )
