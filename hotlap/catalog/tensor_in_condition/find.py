"""Python decides by the value of a tensor: `if loss > 3`, `assert torch.isfinite(x).all()`, `math.isnan(loss)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.parse.terms import EXTENT, TENSOR
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, is_constant, last_name
from hotlap.analysis.queries.graphs import differentiated, is_tensor
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Confidence

WORDS = (
    "if ",
    "while ",
    "assert ",
    "bool(",
    "isnan",
    "isfinite",
    "isinf",
    "allclose",
    "equal(",
    "min(",
    "max(",
    "any(",
    "all(",
)
ONLY_HOT = True
_SIZES = frozenset(("set", "len", "list", "keys", "sorted", "type"))  # of what holds tensors: no value is read
_OF_MAPPINGS = frozenset(("items", "keys", "values", "update", "pop", "get"))
_LIBRARY = ("math.", "numpy.isnan", "numpy.isfinite", "numpy.isinf")


def find(code: Code) -> Iterator[Found]:
    for node, what in _places(code):
        heat = _heat(code, node)
        if heat.hot and heat.side is not Side.LOAD:
            yield Found(
                node,
                f"{what} `{shown(node)}` waits for the device {heat.frequency.value}",
                "decide on the device (torch.where, clamp, nan_to_num), or look every hundredth batch only",
                heat=heat,
                confidence=Confidence.LOW if code.stays_on_host else None,
            )


def _heat(code: Code, node: ast.expr) -> Heat:
    """The condition of a `while` is asked in every turn of it."""
    statement = code.statement(node)
    return code.heat(statement.body[0] if isinstance(statement, ast.While) else node)


def _places(code: Code) -> Iterator[tuple[ast.expr, str]]:
    known = differentiated(code)
    for test, what in _tests(code):
        for part in _parts(test):
            asked = code.kind(part) == TENSOR or _compares(code, part, known)
            if (
                asked
                and not _reads(part)
                and not _counts(part)
                and not _is_mapping(code, part)
                and not _fits(code, part)
            ):
                yield part, what
    for call in code.calls("bool", "isnan", "isfinite", "isinf", "equal", "allclose", "is_nonzero"):
        name = code.full_name(call.func)
        decides = name in ("bool", "torch.equal", "torch.allclose", "torch.is_nonzero") or name.startswith(_LIBRARY)
        if decides and call.args and is_tensor(code, call.args[0], known):
            yield call, "the check"
    yield from _of_several(code)
    for call in code.calls("min", "max"):
        compared = len(call.args) > 1 and code.full_name(call.func) in ("min", "max")
        if compared and any(code.kind(argument) == TENSOR for argument in call.args):
            yield call, "the comparison"


def _of_several(code: Code) -> Iterator[tuple[ast.expr, str]]:
    """`any(torch.isnan(one) for one in losses)`."""
    for call in code.calls("any", "all"):
        given = call.args[0] if call.args else None
        if isinstance(given, ast.GeneratorExp | ast.ListComp) and code.full_name(call.func) in ("any", "all"):
            sizes = any(isinstance(node, ast.Call) and last_name(node.func) in _SIZES for node in walk(given.elt))
            if code.kind(given.elt) == TENSOR and not _reads(given.elt) and not sizes:
                yield call, "the check"


def _counts(node: ast.expr) -> bool:
    """`info["steps"] % n == 0`: a counter, in a dictionary with losses beside it."""
    left = node.left if isinstance(node, ast.Compare) else None
    counted = left.left if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) else None
    return isinstance(counted, ast.Subscript) and isinstance(counted.slice, ast.Constant)


def _fits(code: Code, node: ast.expr) -> bool:
    """`features.shape[1] == self.channels[i]`: a size is equal to another number, not to what a tensor holds."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
        return False
    sides = [node.left, node.comparators[0]]
    others = [side for side in sides if code.kind(side) != EXTENT]
    return len(others) == 1 and not any(isinstance(part, ast.Call) for part in walk(others[0]))


def _is_mapping(code: Code, node: ast.expr) -> bool:
    """`if losses:`, of what the function looks up by names: it asks whether there are any."""
    function = code.function(node)
    if not isinstance(node, ast.Name) or function is None:
        return False
    return any(
        isinstance(getattr(part, "value", None), ast.Name) and part.value.id == node.id  # type: ignore[attr-defined]
        for part in walk(function)
        if (isinstance(part, ast.Subscript) and _is_text(part.slice))
        or (isinstance(part, ast.Attribute) and part.attr in _OF_MAPPINGS)
    )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _compares(code: Code, node: ast.expr, known: frozenset[tuple[ast.AST | None, str]]) -> bool:
    """`loss > 3`, where nothing but the backward pass says that the loss is a tensor."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return False
    return any(is_tensor(code, side, known) for side in (node.left, *node.comparators))


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
    """A method that gives no tensor, whatever the receiver; a comparison with None, which looks at no value."""
    if isinstance(node, ast.Compare) and any(is_constant(side, None) for side in (node.left, *node.comparators)):
        return True
    return isinstance(node, ast.Call) and last_name(node.func) in ("is_floating_point", "is_contiguous", "is_complex")
