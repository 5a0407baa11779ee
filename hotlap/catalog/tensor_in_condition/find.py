"""Python decides by the value of a tensor: `if loss > 3`, `assert torch.isfinite(x).all()`, `math.isnan(loss)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.source.code import Code, last_name
from hotlap.source.rule import Found
from hotlap.source.syncs import shown
from hotlap.source.terms import TENSOR

WORDS = ("if ", "while ", "assert ", "bool(", "isnan", "isfinite", "isinf", "allclose", "equal(")
ONLY_HOT = True
_LIBRARY = ("math.", "numpy.isnan", "numpy.isfinite", "numpy.isinf")


def find(code: Code) -> Iterator[Found]:
    for node, what in _places(code):
        if code.hot(node):
            yield Found(
                node,
                f"{what} `{shown(node)}` waits for the device {code.heat(node).frequency.value}",
                "decide on the device (torch.where, clamp, nan_to_num), or look every hundredth batch only",
            )


def _places(code: Code) -> Iterator[tuple[ast.expr, str]]:
    for test, what in _tests(code):
        for part in _parts(test):
            if code.kind(part) == TENSOR and not _reads(part):
                yield part, what
    for call in code.calls("bool", "isnan", "isfinite", "isinf", "equal", "allclose", "is_nonzero"):
        name = code.full_name(call.func)
        decides = name in ("bool", "torch.equal", "torch.allclose", "torch.is_nonzero") or name.startswith(_LIBRARY)
        if decides and call.args and code.kind(call.args[0]) == TENSOR:
            yield call, "the check"


def _tests(code: Code) -> Iterator[tuple[ast.expr, str]]:
    for node in code.nodes(ast.If, ast.While, ast.IfExp):
        assert isinstance(node, ast.If | ast.While | ast.IfExp)
        yield node.test, "the condition"
    for node in code.nodes(ast.Assert):
        assert isinstance(node, ast.Assert)
        yield node.test, "the assertion"
    for node in code.nodes(ast.comprehension):
        assert isinstance(node, ast.comprehension)
        for test in node.ifs:
            yield test, "the condition"


def _parts(test: ast.expr) -> Iterator[ast.expr]:
    """What is asked for its truth."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _parts(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand)
    else:
        yield test


def _reads(node: ast.expr) -> bool:
    """A method that gives no tensor, whatever the receiver."""
    return isinstance(node, ast.Call) and last_name(node.func) in ("is_floating_point", "is_contiguous", "is_complex")
