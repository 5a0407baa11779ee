"""Finds where the host waits for the device: calls that read a tensor's value."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.terms import HOST_DEVICE, MODULE, NUMBER, TENSOR, UNKNOWN
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, keyword, last_name
from hotlap.analysis.queries.defaults import default
from hotlap.analysis.queries.graphs import differentiated, is_tensor
from hotlap.analysis.queries.invariant import stored_in
from hotlap.records.scan_finding import Confidence

READERS = ("item", "cpu", "numpy", "tolist", "to", "float", "int", "bool")


def explicit(code: Code) -> Iterator[tuple[ast.Call, ast.expr, Confidence]]:
    """Yield each call that waits for the device, the tensor it reads, and how certain it is that it is a tensor."""
    for call in code.calls(*READERS):
        read = read_by(code, call)
        if read is not None:
            yield call, read[0], Confidence.LOW if code.stays_on_host else read[1]


def read_by(code: Code, call: ast.Call) -> tuple[ast.expr, Confidence] | None:
    if isinstance(call.func, ast.Attribute):
        return _by_method(code, call, call.func)
    if isinstance(call.func, ast.Name) and call.func.id in ("float", "int", "bool") and len(call.args) == 1:
        argument = call.args[0]
        return (argument, Confidence.HIGH) if is_tensor(code, argument, differentiated(code)) else None
    return None


def _by_method(code: Code, call: ast.Call, function: ast.Attribute) -> tuple[ast.expr, Confidence] | None:
    name, value = function.attr, function.value
    if name in ("float", "int", "bool") or (name == "to" and not _to_host(code, call)):
        return None
    if name in ("item", "numpy", "tolist") and call.args:
        return None
    kind = code.kind(value)
    if name == "item" and _is_tested(code, value):
        return value, Confidence.LOW
    if name == "numpy" and keyword(call, "force") is None:  # on a device tensor it would be an error
        return (value, Confidence.LOW) if kind == TENSOR else None
    if kind == TENSOR:
        return value, Confidence.HIGH
    if kind == MODULE and name == "item":  # a module has no `item`: it is a tensor that the module holds
        return value, Confidence.MEDIUM
    if kind != UNKNOWN or _is_known(code, value, name) or code.full_name(value) or _stayed_on_host(code, value):
        return None
    if _is_drawn(code, value):
        return None
    if name == "item" or (name in ("cpu", "to") and not isinstance(code.parent(call), ast.Expr)):
        return value, Confidence.MEDIUM
    return (value, Confidence.LOW) if name == "tolist" else None


def _is_tested(code: Code, value: ast.expr) -> bool:
    """Match `if isinstance(value, torch.Tensor): value = value.item()` for the values of `**options`, which a meter
    with `update(loss=loss.item())` gets as numbers."""
    function, loop = code.function(value), next(code.loops(value), None)
    rest = function.args.kwarg.arg if function is not None and function.args.kwarg is not None else ""
    goes_over_options = isinstance(loop, ast.For) and ast.unparse(loop.iter) == f"{rest}.items()"
    return goes_over_options and any(
        isinstance(outer, ast.If)
        and isinstance(outer.test, ast.Call)
        and last_name(outer.test.func) in ("isinstance", "is_tensor")
        and ast.unparse(outer.test.args[0]) == ast.unparse(value)
        for outer in code.ancestors(value)
        if outer is not loop
    )


def _is_known(code: Code, value: ast.expr, method: str) -> bool:
    """Return whether the value is known not to be a tensor. No list or mapping has a method `item`, though."""
    term = code.term(value)
    while method == "item" and isinstance(term, tuple) and term[0] == "join":
        term = term[1]
    return term != UNKNOWN and not (method == "item" and term[0] in ("dict", "list", "tuple"))


def _is_drawn(code: Code, value: ast.expr) -> bool:
    """Match `torch.distributions.Beta(0.2, 0.2).sample()`: with numbers as parameters, it draws on the host."""
    made = value.func.value if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else None
    if not isinstance(made, ast.Call) or not code.full_name(made.func).startswith("torch.distributions."):
        return False
    given = [*made.args, *(word.value for word in made.keywords)]
    return all(
        code.kind(argument) == NUMBER
        or isinstance(default(code, argument) if isinstance(argument, ast.Name) else None, ast.Constant)
        for argument in given
    )


def _stayed_on_host(code: Code, value: ast.expr) -> bool:
    """Match a part of the batch that the loop never moves while it moves others: `target["id"].item()`."""
    loop = code.batch_loop(value)
    name = _beginning(code, value)
    if not isinstance(loop, ast.For) or name not in stored_in([loop.target]) or name in stored_in(loop.body):
        return False
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "cuda")
        for statement in loop.body
        for node in walk(statement)
    )


def _beginning(code: Code, value: ast.expr) -> str:
    """Return the name that an expression begins with; for a comprehension's variable, that of its iterable."""
    while isinstance(value, ast.Attribute | ast.Subscript | ast.Call):
        value = value.func if isinstance(value, ast.Call) else value.value
    name = value.id if isinstance(value, ast.Name) else ""
    for outer in code.ancestors(value):
        if isinstance(outer, ast.stmt):
            break
        for part in getattr(outer, "generators", ()):
            names = [node.id for node in walk(part.target) if isinstance(node, ast.Name)]
            if name in names and name not in stored_in([part.iter]):
                name = _at(part.iter, names.index(name))
    return name


def _at(iterable: ast.expr, number: int) -> str:
    """Return the name of an iterable; for `zip(targets, outputs)`, of the argument at that place."""
    if isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Name) and iterable.func.id == "zip":
        iterable = iterable.args[number] if number < len(iterable.args) else iterable
    return iterable.id if isinstance(iterable, ast.Name) else ""


def _to_host(code: Code, call: ast.Call) -> bool:
    given = call.args[0] if call.args else keyword(call, "device")
    if isinstance(given, ast.Call) and given.args:
        given = given.args[0]
    if isinstance(given, ast.Name) and code.kind(given) == HOST_DEVICE:
        return True
    return isinstance(given, ast.Constant) and given.value == "cpu"


def in_test(code: Code, call: ast.Call) -> bool:
    """Match conditions such as `if bool(x)`, which belong to another rule."""
    return isinstance(call.func, ast.Name) and call.func.id == "bool"


def shown(node: ast.AST, longest: int = 60) -> str:
    """Return the code of a node for a message, shortened to its end if it is long."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= longest else f"…{text[-longest:]}"
