"""Overlapping windows cut in a Python loop and copied into one array."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat
from hotlap.analysis.parse.terms import FRAME, NUMPY, TENSORS, TEXT
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import mentions, prepares, set_to
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Confidence

WORDS = (".append(", " for ")
TESTS = False
SEVERITY = "high"
_STACKS = frozenset(
    "array stack asarray vstack concatenate tensor cat FloatTensor Tensor as_tensor from_numpy LongTensor".split()
)
_SAME = frozenset("to_numpy astype copy float numpy detach clone unsqueeze tolist".split())
_WRAPPED = frozenset(
    "torch.from_numpy torch.tensor torch.as_tensor torch.FloatTensor torch.Tensor torch.LongTensor numpy.array "
    "numpy.asarray numpy.copy".split()
)
_REPAIR = "cut all windows at once: numpy's sliding_window_view and tensor.unfold return views, without copying"


def find(code: Code) -> Iterator[Found]:
    if not any(code.nodes(ast.Slice)) and "slice(" not in code.text and "range(" not in code.text:
        return
    for loop in code.nodes(ast.For):
        assert isinstance(loop, ast.For)
        if isinstance(loop.target, ast.Name) and _is_range(code, loop.iter):
            yield from _appended(code, loop, loop.target.id)
        elif isinstance(loop.target, ast.Tuple) and last_name(getattr(loop.iter, "func", loop.iter)) == "enumerate":
            yield from _of_starts(code, loop, loop.target)
    for node in code.nodes(ast.ListComp):
        assert isinstance(node, ast.ListComp)
        source = node.generators[0]
        if len(node.generators) == 1 and isinstance(source.target, ast.Name) and _is_range(code, source.iter):
            cut = _window(code, node.elt, source.target.id, {}, source.iter)
            if cut is not None and _is_stacked_itself(code, node) and prepares(code, node):
                yield _found(code, cut)


def _found(code: Code, cut: ast.Subscript) -> Found:
    heat = code.heat(cut)
    confidence = Confidence.HIGH if code.kind(cut.value) in (*TENSORS, NUMPY, FRAME) else Confidence.MEDIUM
    return Found(
        cut,
        f"`{shown(cut)}` copies overlapping windows one by one",
        _REPAIR,
        heat=Heat(heat.frequency, Confidence.HIGH, heat.side, heat.why),
        confidence=confidence,
    )


def _appended(code: Code, loop: ast.For, index: str) -> Iterator[Found]:
    """Yield only the first window cut in the loop: inputs and targets are often cut together."""
    local = _locals(loop)
    for statement in loop.body:
        for value, into in _gathered(statement, index):
            cut = next(_cuts(code, value, local, index, loop.iter), None)
            if cut is None or not prepares(code, loop):
                continue
            if isinstance(into, ast.Subscript) or _is_stacked(code, loop, into):
                yield _found(code, cut)
                return


Locals = dict[str, ast.expr]


def _locals(loop: ast.For) -> Locals:
    return {
        target.id: statement.value
        for statement in loop.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def _gathered(statement: ast.stmt, index: str) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each value appended to a list or stored as a row of an array, with that list or row."""
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        row = statement.targets[0]
        first = row.slice.elts[0] if isinstance(row.slice, ast.Tuple) and row.slice.elts else row.slice
        if isinstance(first, ast.Name) and first.id == index:
            yield statement.value, row
    for call in walk(statement):
        named = isinstance(call, ast.Call) and len(call.args) == 1 and isinstance(call.func, ast.Attribute)
        if named and call.func.attr == "append":  # type: ignore[attr-defined]
            yield call.args[0], call.func.value  # type: ignore[attr-defined]


def _cuts(code: Code, value: ast.expr, local: Locals, index: str, iterable: ast.expr) -> Iterator[ast.Subscript]:
    value = local.get(value.id, value) if isinstance(value, ast.Name) else value
    for element in value.elts if isinstance(value, ast.Tuple) else [value]:
        inner = local.get(element.id, element) if isinstance(element, ast.Name) else element
        found = _window(code, inner, index, local, iterable)
        if found is not None:
            yield found


def _of_starts(code: Code, loop: ast.For, target: ast.Tuple) -> Iterator[Found]:
    """Yield from `for row, start in enumerate(starts): windows[row] = series[start : start + length]`."""
    names = [element.id for element in target.elts if isinstance(element, ast.Name)]
    if len(names) != 2 or not (_makes_tensors(code, loop) or code.heat(loop).hot):
        return
    local = _locals(loop)
    for statement in loop.body:
        for value, into in _gathered(statement, names[0]):
            cut = next(_cuts(code, value, local, names[1], loop.iter), None)
            if cut is not None and isinstance(into, ast.Subscript) and prepares(code, loop):
                yield _found(code, cut)
                return


def _makes_tensors(code: Code, loop: ast.For) -> bool:
    """Tell whether the function creates an array or tensor for the rows."""
    function = code.function(loop)
    return function is not None and any(
        isinstance(node, ast.Call) and code.full_name(node.func).endswith((".zeros", ".empty", ".full", ".ones"))
        for node in walk(function)
    )


def _is_range(code: Code, node: ast.expr) -> bool:
    """Recognise range(…) or np.arange(…), also by the name of a variable set to it."""
    while isinstance(node, ast.Call) and last_name(node.func) == "tqdm" and node.args:
        node = node.args[0]
    if isinstance(node, ast.Name):
        values = [value for value in set_to(code, node) if code.function(value) is code.function(node)]
        return bool(values) and all(isinstance(value, ast.Call) and _counts(code, value) for value in values)
    return isinstance(node, ast.Call) and _counts(code, node)


def _counts(code: Code, node: ast.Call) -> bool:
    return last_name(node.func) in ("range", "trange") or code.full_name(node.func) in ("numpy.arange", "torch.arange")


def _window(code: Code, node: ast.expr, index: str, local: Locals, iterable: ast.expr) -> ast.Subscript | None:
    """Return the overlapping slice `series[i : i + length]`, perhaps of `.values`, or None. Text does not count."""
    node = _unwrapped(code, node)
    if not isinstance(node, ast.Subscript) or code.kind(node.value) == TEXT:
        return None
    first_dimension, *rest = node.slice.elts if isinstance(node.slice, ast.Tuple) and node.slice.elts else [node.slice]
    first = _as_slice(first_dimension, local)
    if not isinstance(first, ast.Slice) or first.lower is None or first.upper is None:
        return None
    if any(mentions(dimension, {index, *local}) for dimension in rest) or not _overlaps(first, iterable):
        return None
    moving = {index, *(name for name, value in local.items() if mentions(value, {index}))}
    moving |= {name for name, value in local.items() if mentions(value, moving)}
    both = mentions(first.lower, moving) and mentions(first.upper, moving)
    return node if both and _is_fixed(first.lower, first.upper, local, moving) else None


def _as_slice(node: ast.expr, local: Locals) -> ast.expr:
    """Return `slice(i, i + n)` or `range(i, i + n)`, also by the name of a local, as a slice."""
    value = local.get(node.id) if isinstance(node, ast.Name) else node
    named = isinstance(value, ast.Call) and last_name(value.func) in ("slice", "range") and len(value.args) == 2
    return ast.Slice(value.args[0], value.args[1]) if named else node  # type: ignore[union-attr]


def _unwrapped(code: Code, node: ast.expr) -> ast.expr:
    """Strip `.values`, `.to_numpy()` and conversions to a tensor."""
    while True:
        if isinstance(node, ast.Attribute) and node.attr == "values":
            node = node.value
        elif isinstance(node, ast.Call) and code.full_name(node.func) in _WRAPPED and node.args:
            node = node.args[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SAME:
            node = node.func.value
        else:
            return node


def _is_fixed(lower: ast.expr, upper: ast.expr, local: Locals, moving: set[str]) -> bool:
    """Tell whether the length, upper minus lower, is the same in every iteration."""
    total = Counter(_sum(upper, local, 1))
    for text, sign in _sum(lower, local, -1).items():
        total[text] += sign
    names = {text for text, count in total.items() if count}
    return bool(names) and not any(mentions(ast.parse(text, mode="eval"), moving) for text in names)


def _sum(node: ast.expr, local: Locals, sign: int) -> Counter[str]:
    """Return the terms of a sum with their counts: `i + n - 1` is {i: 1, n: 1, 1: -1}."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        found = _sum(node.left, local, sign)
        right_sign = sign if isinstance(node.op, ast.Add) else -sign
        for text, count in _sum(node.right, local, right_sign).items():
            found[text] += count
        return found
    if isinstance(node, ast.Name) and node.id in local:
        return _sum(local[node.id], {key: value for key, value in local.items() if key != node.id}, sign)
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Counter({"1": sign * node.value})
    return Counter({ast.unparse(node): sign})


def _overlaps(cut: ast.Slice, iterable: ast.expr) -> bool:
    """Tell whether consecutive windows overlap: the step of the range is not the length of the window."""
    assert cut.lower is not None
    assert cut.upper is not None
    if any(isinstance(node, ast.Mult) for node in walk(cut.lower)):  # series[i * n : (i + 1) * n]
        return False
    while isinstance(iterable, ast.Call) and last_name(iterable.func) == "tqdm":
        iterable = iterable.args[0]
    if not isinstance(iterable, ast.Call) or len(iterable.args) < 3:
        return True
    step = ast.unparse(iterable.args[2])
    return step == "1" or step not in {ast.unparse(node) for node in walk(cut) if isinstance(node, ast.expr)}


def _is_stacked(code: Code, loop: ast.For, gathered: ast.expr) -> bool:
    """Tell whether the list later becomes one array, or is returned to a caller that makes one."""
    name = ast.unparse(gathered)
    scope = code.function(loop) or code.tree
    for node in walk(scope):
        if getattr(node, "lineno", 0) < (loop.end_lineno or loop.lineno):
            continue
        stacks = isinstance(node, ast.Call) and last_name(node.func) in _STACKS
        if stacks and any(ast.unparse(argument) == name for argument in node.args):  # type: ignore[attr-defined]
            return True
    return isinstance(gathered, ast.Name) and _is_returned_for_stacking(code, scope, name)


def _is_returned_for_stacking(code: Code, scope: ast.AST, name: str) -> bool:
    """Recognise `return windows, targets` where a caller in the file makes arrays of the result."""
    if not isinstance(scope, ast.FunctionDef):
        return False
    returned = any(
        isinstance(node, ast.Return) and node.value is not None and mentions(node.value, {name}) for node in walk(scope)
    )
    if not returned:
        return False
    for call in code.calls(scope.name):
        parent = code.parent(call)
        if not isinstance(parent, ast.Assign):
            continue
        names = {node.id for target in parent.targets for node in walk(target) if isinstance(node, ast.Name)}
        stacked = [
            stack
            for stack in code.calls(*_STACKS)
            if any(isinstance(argument, ast.Name) and argument.id in names for argument in stack.args)
        ]
        if stacked:
            return True
    return False


def _is_stacked_itself(code: Code, node: ast.ListComp) -> bool:
    parent = code.parent(node)
    if isinstance(parent, ast.Call):
        return last_name(parent.func) in _STACKS
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        name = parent.targets[0].id
        scope = code.function(node) or code.tree
        return any(
            isinstance(candidate, ast.Call)
            and last_name(candidate.func) in _STACKS
            and any(getattr(argument, "id", "") == name for argument in candidate.args)
            for candidate in walk(scope)
        )
    return False
