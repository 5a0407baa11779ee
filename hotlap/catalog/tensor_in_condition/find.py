"""Python branches on the value of a tensor: `if loss > 3`, `assert torch.isfinite(x).all()`, `math.isnan(loss)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.parse.terms import EXTENT, TENSOR
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import hundredth
from hotlap.analysis.queries.code import Code, is_constant, last_name
from hotlap.analysis.queries.graphs import differentiated, is_tensor
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Applicability, Confidence

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
_SIZES = frozenset(("set", "len", "list", "keys", "sorted", "type"))  # of containers of tensors: no value is read
_OF_MAPPINGS = frozenset(("items", "keys", "values", "update", "pop", "get"))
_LOOKING = frozenset(
    "isnan isinf isfinite isclose any all abs max min sum mean norm item detach float bool equal allclose is_nonzero "
    "len cpu".split()
)
_TELLING = frozenset("print warn warning info error critical exception".split())
_LIBRARY = ("math.", "numpy.isnan", "numpy.isfinite", "numpy.isinf")


def find(code: Code) -> Iterator[Found]:
    for node, subject in _places(code):
        heat = _heat(code, node)
        if heat.hot and heat.side is not Side.LOAD:
            hints = _hints(code, node)
            yield Found(
                node,
                f"{subject} `{shown(node)}` waits for the device {heat.frequency}",
                "decide on the device (torch.where, clamp, nan_to_num), or check only every hundredth batch",
                Applicability.UNSAFE if hints else Applicability.DISPLAY_ONLY,
                heat=heat,
                confidence=Confidence.LOW if code.stays_on_host else None,
                hints=hints,
            )


def _hints(code: Code, node: ast.expr) -> dict[str, str]:
    """Return what the repair needs for a check that only tells: it finds the same fault a few batches later."""
    statement = code.statement(node)
    if not isinstance(statement, ast.Assert | ast.If) or not _only_looks(statement.test):
        return {}
    if isinstance(statement, ast.Assert) or (isinstance(statement, ast.If) and _only_tells(code, statement)):
        found = hundredth.hints(code, statement)
        return {**found, "test": position_of(statement.test, code.lines)} if found else {}
    return {}


def _only_looks(test: ast.expr) -> bool:
    """Return whether leaving the test out changes nothing, unlike `clip_grad_norm_(weights, 1.0) > 100`."""
    acts = (ast.NamedExpr, ast.Await, ast.Yield)
    return not any(
        isinstance(node, acts) or (isinstance(node, ast.Call) and last_name(node.func) not in _LOOKING)
        for node in walk(test)
    )


def _only_tells(code: Code, check: ast.If) -> bool:
    """Match `if torch.isnan(loss): raise …` and the like, which leave the training as it is or end it."""
    parent = code.parent(check)
    is_elif = isinstance(parent, ast.If) and parent.orelse == [check]
    return not check.orelse and not is_elif and all(_tells(statement) for statement in check.body)


def _tells(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    told = isinstance(call, ast.Call) and last_name(call.func) in _TELLING
    return told or isinstance(statement, ast.Raise)


def _heat(code: Code, node: ast.expr) -> Heat:
    """Return the heat of the body for a `while`: its condition is evaluated in every iteration."""
    statement = code.statement(node)
    return code.heat(statement.body[0] if isinstance(statement, ast.While) else node)


def _places(code: Code) -> Iterator[tuple[ast.expr, str]]:
    known_tensors = differentiated(code)
    for test, subject in _tests(code):
        for operand in _operands(test):
            is_read = code.kind(operand) == TENSOR or _compares(code, operand, known_tensors)
            if (
                is_read
                and not _reads_no_value(operand)
                and not _counts(operand)
                and not _is_mapping(code, operand)
                and not _fits(code, operand)
            ):
                yield operand, subject
    for call in code.calls("bool", "isnan", "isfinite", "isinf", "equal", "allclose", "is_nonzero"):
        name = code.full_name(call.func)
        decides = name in ("bool", "torch.equal", "torch.allclose", "torch.is_nonzero") or name.startswith(_LIBRARY)
        if decides and call.args and is_tensor(code, call.args[0], known_tensors):
            yield call, "the check"
    yield from _of_several(code)
    for call in code.calls("min", "max"):
        compared = len(call.args) > 1 and code.full_name(call.func) in ("min", "max")
        if compared and any(code.kind(argument) == TENSOR for argument in call.args):
            yield call, "the comparison"


def _of_several(code: Code) -> Iterator[tuple[ast.expr, str]]:
    """Yield `any(torch.isnan(loss) for loss in losses)`."""
    for call in code.calls("any", "all"):
        elements = call.args[0] if call.args else None
        if isinstance(elements, ast.GeneratorExp | ast.ListComp) and code.full_name(call.func) in ("any", "all"):
            sizes = any(isinstance(node, ast.Call) and last_name(node.func) in _SIZES for node in walk(elements.elt))
            if code.kind(elements.elt) == TENSOR and not _reads_no_value(elements.elt) and not sizes:
                yield call, "the check"


def _counts(node: ast.expr) -> bool:
    """Recognise the counter in `info["steps"] % n == 0`, even if the dictionary also holds losses."""
    left = node.left if isinstance(node, ast.Compare) else None
    counted = left.left if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) else None
    return isinstance(counted, ast.Subscript) and isinstance(counted.slice, ast.Constant)


def _fits(code: Code, node: ast.expr) -> bool:
    """Recognise `features.shape[1] == self.channels[i]`: a size is compared with a number, not with a tensor."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
        return False
    sides = [node.left, node.comparators[0]]
    others = [side for side in sides if code.kind(side) != EXTENT]
    return len(others) == 1 and not any(isinstance(inner, ast.Call) for inner in walk(others[0]))


def _is_mapping(code: Code, node: ast.expr) -> bool:
    """Recognise `if losses:` of a mapping, which only asks whether it is empty."""
    function = code.function(node)
    if not isinstance(node, ast.Name) or function is None:
        return False
    return any(
        isinstance(getattr(inner, "value", None), ast.Name) and inner.value.id == node.id  # type: ignore[attr-defined]
        for inner in walk(function)
        if (isinstance(inner, ast.Subscript) and _is_text(inner.slice))
        or (isinstance(inner, ast.Attribute) and inner.attr in _OF_MAPPINGS)
    )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _compares(code: Code, node: ast.expr, known_tensors: frozenset[tuple[ast.AST | None, str]]) -> bool:
    """Recognise `loss > 3` where only the backward pass shows that the loss is a tensor."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return False
    return any(is_tensor(code, side, known_tensors) for side in (node.left, *node.comparators))


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


def _operands(test: ast.expr) -> Iterator[ast.expr]:
    """Yield the operands whose truth value is taken."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _operands(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _operands(test.operand)
    else:
        yield test


def _reads_no_value(node: ast.expr) -> bool:
    """Recognise what reads no value: methods that return no tensor, and comparisons with None."""
    if isinstance(node, ast.Compare) and any(is_constant(side, None) for side in (node.left, *node.comparators)):
        return True
    return isinstance(node, ast.Call) and last_name(node.func) in ("is_floating_point", "is_contiguous", "is_complex")
