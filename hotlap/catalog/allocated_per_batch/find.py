"""The same tensor, or the same loss module, created anew every batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Definition, Repeated, is_constant, keyword, last_name
from hotlap.analysis.queries.invariant import is_changed, is_invariant, set_by
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = ("torch.", "nn.", "Loss(")
ONLY_HOT = True
_TENSOR_MAKERS = frozenset("zeros ones full eye arange linspace tensor tril_indices triu_indices hann_window".split())
_STATELESS = frozenset(
    "Softmax LogSoftmax ReLU LeakyReLU Sigmoid Tanh GELU SiLU ELU Dropout Flatten CosineSimilarity PairwiseDistance "
    "MaxPool2d AvgPool2d AdaptiveAvgPool2d Upsample Softplus".split()
)

_CONTAINERS = frozenset(f"torch.nn.{name}" for name in ("Sequential", "ModuleList", "ModuleDict"))


def find(code: Code) -> Iterator[Found]:
    for call in code.all_calls():
        name = code.full_name(call.func)
        if not name.startswith("torch.") or not code.hot(call) or _in_constructor(code, call):
            continue
        short = name.rsplit(".", 1)[-1]
        if name == f"torch.{short}" and short in _TENSOR_MAKERS:
            yield from _tensor(code, call)
        elif name.startswith("torch.nn.") and (short.endswith("Loss") or short in _STATELESS):
            yield from _module(code, call)


def _in_constructor(code: Code, call: ast.Call) -> bool:
    """Skip calls in a constructor: the object itself is what is created again and again."""
    function = code.function(call)
    return function is not None and function.name in ("__init__", "__post_init__", "setup", "reset_parameters")


def _tensor(code: Code, call: ast.Call) -> Iterator[Found]:
    loop = code.batch_loop(call)
    changing = set_by(loop) if loop is not None else _parameters(code, call)
    arguments = [*call.args, *(word.value for word in call.keywords)]
    if not arguments or is_constant(keyword(call, "requires_grad"), True) or _is_empty(call, arguments[0]):
        return
    if loop is None:  # the device and type of the input: a buffer has the same
        arguments = [
            argument
            for argument in arguments
            if not (isinstance(argument, ast.Attribute) and argument.attr in ("device", "dtype"))
        ]
    if not all(is_invariant(argument, changing) for argument in arguments) or _is_start_of_sum(code, call):
        return
    if _is_collected(code, call):
        return
    expression = _with_transfers(code, call, changing)
    hints = _hoisting(code, expression, loop)
    yield Found(
        expression,
        f"`{shown(expression)}` creates the same tensor {code.heat(call).frequency}",
        "create it once, before the loop" if loop is not None else "create it once, in __init__ or as a buffer",
        Applicability.SAFE if hints else Applicability.DISPLAY_ONLY,
        confidence=Confidence.LOW if _is_host_number(expression) else None if loop is not None else Confidence.MEDIUM,
        hints=hints,
    )


def _is_host_number(expression: ast.Call) -> bool:
    """Recognise `torch.tensor(0.0)` and nothing more: one number on the host, which costs a microsecond."""
    plain = (
        last_name(expression.func) == "tensor"
        and len(expression.args) == 1
        and isinstance(expression.args[0], ast.Constant)
    )
    return plain and keyword(expression, "device") is None


def _is_empty(call: ast.Call, size: ast.expr) -> bool:
    """Recognise `torch.zeros(0, 2)`, `torch.zeros((0, 4))` and `torch.tensor([])`, which allocate nothing."""
    if last_name(call.func) == "tensor":
        return isinstance(size, ast.List | ast.Tuple) and not size.elts
    if last_name(call.func) not in ("zeros", "ones", "empty", "full", "rand", "randn"):
        return False
    first = size.elts[0] if isinstance(size, ast.Tuple | ast.List) and size.elts else size
    return is_constant(first, 0)


def _is_collected(code: Code, call: ast.Call) -> bool:
    """Recognise `results.append(torch.tensor([-1]).float())`: the list holds every tensor, so they cannot be shared."""
    return (
        any(
            isinstance(outer, ast.Call) and last_name(outer.func) in ("append", "extend", "insert")
            for outer in code.ancestors(call)
            if not isinstance(outer, ast.stmt)
        )
        and code.batch_loop(call) is None
    )


def _module(code: Code, call: ast.Call) -> Iterator[Found]:
    loop = code.batch_loop(call)
    parent = code.parent(call)
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Attribute):
        return  # an attribute: created when it is needed, not every batch
    if _is_layer(code, call):
        return
    hints = _hoisting(code, call, loop) if loop is not None and _is_stateless(call) else {}
    yield Found(
        call,
        f"`{shown(call)}` is created anew {code.heat(call).frequency}",
        "create it once, before the loop" if loop is not None else "create it once, in __init__",
        Applicability.SAFE if hints else Applicability.DISPLAY_ONLY,
        confidence=None if loop is not None else Confidence.LOW,  # microseconds, and not moved by a line
        hints=hints,
    )


def _is_layer(code: Code, call: ast.Call) -> bool:
    """Recognise layers put into a container: a network is built here, which nobody does for every batch."""
    return any(
        isinstance(outer, ast.Call) and code.full_name(outer.func) in _CONTAINERS
        for outer in code.ancestors(call)
        if not isinstance(outer, ast.stmt)
    )


def _is_stateless(call: ast.Call) -> bool:
    return last_name(call.func).endswith("Loss") and all(is_invariant(argument, set()) for argument in call.args)


def _parameters(code: Code, call: ast.Call) -> set[str]:
    """Return the names that may differ between calls of the function: its parameters and the names it sets."""
    function = code.function(call)
    if function is None:
        return set()
    names = {
        parameter.arg for parameter in (*function.args.args, *function.args.kwonlyargs, *function.args.posonlyargs)
    }
    return (names | code.stored(function)) - {"self"} - _constant_names(function, names)


def _constant_names(function: Definition, parameters: set[str]) -> set[str]:
    """Return the names set once, outside loops, to a constant: `half = self.width // 2`, `device = x.device`."""
    once = [pair for statement in function.body if isinstance(statement, ast.Assign) for pair in _pairs(statement)]
    stores = [node.id for node in walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    found: set[str] = set()
    for name, value in once:
        changing = (parameters | set(stores)) - {"self"} - found
        place = isinstance(value, ast.Attribute) and value.attr in ("device", "dtype")
        if stores.count(name) == 1 and (place or (_is_of_self(value) and is_invariant(value, changing))):
            found.add(name)
    return found


def _pairs(statement: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Yield names and their values, also for `device, size = x.device, self.size`."""
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for name, element in zip(target.elts, value.elts, strict=True):
            if isinstance(name, ast.Name):
                yield name.id, element


def _is_of_self(value: ast.expr) -> bool:
    """Require an attribute of the object: plain constants are mostly the start of a sum."""
    return any(isinstance(node, ast.Name) and node.id == "self" for node in walk(value))


def _with_transfers(code: Code, call: ast.Call, changing: set[str]) -> ast.Call:
    """Return the whole expression, including `.to(device)` and similar calls on the tensor."""
    here = call
    while True:
        attribute = code.parent(here)
        outer = code.parent(attribute) if isinstance(attribute, ast.Attribute) else None
        if not isinstance(outer, ast.Call) or not isinstance(attribute, ast.Attribute) or outer.func is not attribute:
            return here
        if attribute.attr not in ("to", "cuda", "float", "long", "half", "view", "unsqueeze", "reshape", "double"):
            return here
        if not all(is_invariant(argument, changing) for argument in outer.args):
            return here
        here = outer


def _is_start_of_sum(code: Code, call: ast.Call) -> bool:
    """Recognise `loss = torch.zeros(1)` that is then added to: it must start from zero again."""
    statement = code.statement(call)
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or _is_part(code, call, statement):
        return False
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    if isinstance(target, ast.Tuple) and isinstance(
        statement.value, ast.Tuple
    ):  # a, b = torch.zeros(1), torch.zeros(1)
        pairs = zip(target.elts, statement.value.elts, strict=False)
        target = next((name for name, value in pairs if any(node is call for node in walk(value))), target)
    if not isinstance(target, ast.Name):
        return isinstance(target, ast.Attribute)
    scope: ast.AST = code.function(call) or code.tree
    stores = [
        node for node in walk(scope)
        if isinstance(node, ast.Name) and node.id == target.id and isinstance(node.ctx, ast.Store)
    ]  # fmt: skip
    loop = next(code.loops(call), None)
    block = loop.body if loop is not None else getattr(scope, "body", [])
    return len(stores) > 1 or is_changed(code, target.id, block, statement, strangers=False)


def _is_part(code: Code, call: ast.Call, statement: ast.stmt) -> bool:
    """Recognise an argument of an operation that creates a new tensor: `torch.exp(torch.arange(n) * -scale)`."""
    for outer in code.ancestors(call):
        if outer is statement:
            return False
        if isinstance(outer, ast.Call) and code.full_name(outer.func).startswith("torch."):
            return True
    return False


def _hoisting(code: Code, node: ast.Call, loop: Repeated | None) -> dict[str, str]:
    """Return where the whole statement can be moved, or {} if something changes the tensor or the move is not safe."""
    statement = code.statement(node)
    if loop is None or not isinstance(statement, ast.Assign) or statement.value is not node:
        return {}
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or len(statement.targets) != 1 or statement not in loop.body:
        return {}
    if is_changed(code, target.id, loop.body, statement) or not _can_precede(code, loop):
        return {}
    return {"loop": position_of(loop, code.lines), "statement": position_of(statement, code.lines)}


def _can_precede(code: Code, loop: Repeated) -> bool:
    """Tell whether a statement can be inserted before the loop."""
    parent = code.parent(loop)
    return isinstance(
        parent, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.For | ast.With | ast.If | ast.While
    )
