"""Tensors and arrays built from Python numbers, one character or item at a time, for every sample or row."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.parse.terms import FRAME, TEXT, UNKNOWN
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import is_kept, per_sample, prepares
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Confidence, Frequency

WORDS = ("torch.", "np.", "numpy")
SEVERITY = "high"
_MAKERS = frozenset(
    [
        f"torch.{name}"
        for name in "tensor as_tensor FloatTensor LongTensor Tensor IntTensor BoolTensor ByteTensor".split()
    ]
    + [f"numpy.{name}" for name in "array asarray fromiter".split()]
)
_NUMBERS = frozenset(("int", "float", "ord", "bool"))


def find(code: Code) -> Iterator[Found]:
    for call in code.all_calls():
        name = code.full_name(call.func)
        if not call.args or name not in (*_MAKERS, "torch.stack", "torch.cat"):
            continue
        unit = _by_items(code, call.args[0]) if name in _MAKERS else _by_tensors(code, call)
        if not unit or is_kept(code, call):
            continue
        heat = _repeated_heat(code, call)
        if heat is not None:
            yield Found(
                call,
                f"`{shown(call)}` turns every {unit} into a Python number",
                "encode all rows at once, with np.frombuffer(text.encode(), np.uint8) - 48 for digits, a lookup table "
                "or np.isin, and keep the result",
                heat=heat,
            )


def _by_items(code: Code, node: ast.expr) -> str:
    """Return what is converted one at a time, "character" or "entry", or "" if nothing is."""
    if isinstance(node, ast.ListComp | ast.GeneratorExp) and len(node.generators) == 1:
        return _by_comprehension(code, node.elt, node.generators[0])
    if isinstance(node, ast.Call) and last_name(node.func) == "list" and len(node.args) == 1:
        inner = node.args[0]
        if isinstance(inner, ast.Call) and last_name(inner.func) == "map" and len(inner.args) == 2:
            return "character" if last_name(inner.args[0]) in _NUMBERS and _may_be_text(code, inner.args[1]) else ""
        return "character" if code.kind(inner) == TEXT else ""
    if not isinstance(node, ast.Name):
        return ""
    made = _made(code, node)
    if isinstance(made, ast.ListComp) and len(made.generators) == 1 and per_sample(code, node):
        return _by_comprehension(code, made.elt, made.generators[0])
    return "entry" if _is_one_hot(code, node) or (made is not None and _is_filled(code, node, made)) else ""


def _made(code: Code, node: ast.Name) -> ast.expr | None:
    """Return the only value that the function sets a name to."""
    function = code.function(node)
    values = list(_values(function, node.id)) if function is not None else []
    return values[0] if len(values) == 1 else None


def _is_filled(code: Code, node: ast.Name, made: ast.expr) -> bool:
    """Match `bits = []; for character in text: bits.append(int(character))` for every sample."""
    function = code.function(node)
    if function is None or not isinstance(made, ast.List) or made.elts or not per_sample(code, node):
        return False
    appended = [
        call
        for call in walk(function)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append"
        if last_name(call.func.value) == node.id
    ]
    return bool(appended) and all(
        len(call.args) == 1
        and isinstance(call.args[0], ast.Call)
        and last_name(call.args[0].func) in _NUMBERS
        and next(code.loops(call), None) is not None
        for call in appended
    )


def _is_one_hot(code: Code, node: ast.Name) -> bool:
    """Recognise `row = [0] * classes; row[label] = 1`."""
    function = code.function(node)
    if function is None:
        return False
    zeros = any(_is_zeros(value) for value in _values(function, node.id))
    return zeros and any(
        isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Subscript)
        and last_name(statement.targets[0].value) == node.id
        and isinstance(statement.value, ast.Constant)
        for statement in walk(function)
    )


def _values(function: ast.AST, name: str) -> Iterator[ast.expr]:
    for node in walk(function):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            yield node.value


def _is_zeros(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        value = value.left if isinstance(value.left, ast.List) else value.right
        return isinstance(value, ast.List) and len(value.elts) == 1 and isinstance(value.elts[0], ast.Constant)
    return isinstance(value, ast.ListComp) and isinstance(value.elt, ast.Constant)


def _by_tensors(code: Code, call: ast.Call) -> str:
    """Recognise `torch.stack([torch.tensor(value) for value in row])` for every sample: a tensor per number."""
    node = call.args[0]
    if not isinstance(node, ast.ListComp) or code.heat(call).frequency.rank < Frequency.SAMPLE.rank:
        return ""
    element, source = node.elt, node.generators[0]
    single = isinstance(element, ast.Call) and code.full_name(element.func) in _MAKERS and len(element.args) == 1
    same = single and ast.unparse(element.args[0]) == ast.unparse(source.target)  # type: ignore[attr-defined]
    return "entry" if same else ""


def _by_comprehension(code: Code, element: ast.expr, source: ast.comprehension) -> str:
    if not isinstance(source.target, ast.Name):
        return ""
    name = source.target.id
    if _is_membership(element, name):
        return "entry"
    if isinstance(element, ast.Call) and last_name(element.func) in _NUMBERS and len(element.args) == 1:
        direct = isinstance(element.args[0], ast.Name) and element.args[0].id == name
        certain = last_name(element.func) != "float" or code.kind(source.iter) == TEXT
        return "character" if direct and certain and _may_be_text(code, source.iter) else ""
    if isinstance(element, ast.Subscript) and isinstance(element.slice, ast.Name) and element.slice.id == name:
        column = code.kind(source.iter) == FRAME and per_sample(code, source.iter)
        return "character" if code.kind(source.iter) == TEXT or column else ""
    return ""


def _may_be_text(code: Code, node: ast.expr) -> bool:
    """Accept text, or in the data path a row that may be text, but not numbers, files or a split line."""
    if isinstance(node, ast.Call):
        return last_name(node.func) in ("strip", "lower", "zfill", "format", "bin") or code.kind(node) == TEXT
    kind = code.kind(node)
    if kind != UNKNOWN:
        return kind == TEXT
    in_model = code.heat(node).hot and not per_sample(code, node)
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and not in_model


def _is_membership(element: ast.expr, name: str) -> bool:
    """Recognise `1.0 if gram in grams else 0.0`, `int(gram in grams)` and `gram in grams`."""
    if isinstance(element, ast.Call) and last_name(element.func) in _NUMBERS and len(element.args) == 1:
        element = element.args[0]
    test = element.test if isinstance(element, ast.IfExp) else element
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.In | ast.NotIn):
        return False
    plain = not isinstance(element, ast.IfExp) or all(
        isinstance(branch, ast.Constant) for branch in (element.body, element.orelse)
    )
    return plain and isinstance(test.left, ast.Name) and test.left.id == name


def _repeated_heat(code: Code, call: ast.Call) -> Heat | None:
    """Return how often the call runs, or None if only once: not hot, in no loop and in no function called per row."""
    heat = code.heat(call)
    if heat.hot:
        return heat
    if heat.frequency is Frequency.NEVER or not prepares(code, call) or not _is_looped(code, call):
        return None
    return Heat(heat.frequency, Confidence.MEDIUM, heat.side, heat.why)


def _is_looped(code: Code, call: ast.Call) -> bool:
    if _in_own_loop(code, call):
        return True
    function = code._reader_function(call)
    if function is None or not function.name:
        return False
    for caller, invocation in code.hotness.callers.get(Reference(code.path, function.name), []):
        if any(frame >= 0 for frame in invocation.stack) or (
            isinstance(invocation.callee, tuple) and invocation.callee[-1] in ("apply", "map")
        ):
            return True
        if isinstance(invocation.callee, str):
            return True  # a method of a frame that calls its argument
        if "<lambda" in caller.name:
            return True
    return False


def _in_own_loop(code: Code, call: ast.Call) -> bool:
    for outer in code.ancestors(call):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        if isinstance(outer, ast.For | ast.While | ast.ListComp | ast.GeneratorExp | ast.Lambda):
            return True
    return False
