"""The same tensor, or the same loss module, made anew every batch."""

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
_MADE = frozenset("zeros ones full eye arange linspace tensor tril_indices triu_indices hann_window".split())
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
        if name == f"torch.{short}" and short in _MADE:
            yield from _tensor(code, call)
        elif name.startswith("torch.nn.") and (short.endswith("Loss") or short in _STATELESS):
            yield from _module(code, call)


def _in_constructor(code: Code, call: ast.Call) -> bool:
    """It belongs to an object, which is what is made again and again."""
    function = code.function(call)
    return function is not None and function.name in ("__init__", "__post_init__", "setup", "reset_parameters")


def _tensor(code: Code, call: ast.Call) -> Iterator[Found]:
    loop = code.batch_loop(call)
    changing = set_by(loop) if loop is not None else _parameters(code, call)
    parts = [*call.args, *(word.value for word in call.keywords)]
    if not parts or is_constant(keyword(call, "requires_grad"), True) or _is_empty(call, parts[0]):
        return
    if loop is None:  # on the device and of the type of what comes in: a buffer is that, too
        parts = [part for part in parts if not (isinstance(part, ast.Attribute) and part.attr in ("device", "dtype"))]
    if not all(is_invariant(part, changing) for part in parts) or _is_start_of_sum(code, call):
        return
    if _is_put_away(code, call):
        return
    whole = _moved(code, call, changing)
    hints = _hoisting(code, whole, loop)
    yield Found(
        whole,
        f"`{shown(whole)}` makes the same tensor {code.heat(call).frequency.value}",
        "make it once, before the loop" if loop is not None else "make it once, in __init__ or as a buffer",
        Applicability.SAFE if hints else Applicability.DISPLAY_ONLY,
        confidence=Confidence.LOW if _is_host_number(whole) else None if loop is not None else Confidence.MEDIUM,
        hints=hints,
    )


def _is_host_number(whole: ast.Call) -> bool:
    """`torch.tensor(0.0)`, and nothing more: a number of the host, which costs a microsecond."""
    made = last_name(whole.func) == "tensor" and len(whole.args) == 1 and isinstance(whole.args[0], ast.Constant)
    return made and keyword(whole, "device") is None


def _is_empty(call: ast.Call, size: ast.expr) -> bool:
    """`torch.zeros(0, 2)`, `torch.zeros((0, 4))`, `torch.tensor([])`: nothing is allocated."""
    if last_name(call.func) == "tensor":
        return isinstance(size, ast.List | ast.Tuple) and not size.elts
    if last_name(call.func) not in ("zeros", "ones", "empty", "full", "rand", "randn"):
        return False
    first = size.elts[0] if isinstance(size, ast.Tuple | ast.List) and size.elts else size
    return is_constant(first, 0)


def _is_put_away(code: Code, call: ast.Call) -> bool:
    """`results.append(torch.tensor([-1]).float())`: the list keeps each of them."""
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
        return  # kept: made when it is needed, not every batch
    if _is_layer(code, call):
        return
    hints = _hoisting(code, call, loop) if loop is not None and _is_stateless(call) else {}
    yield Found(
        call,
        f"`{shown(call)}` is made anew {code.heat(call).frequency.value}",
        "make it once, before the loop" if loop is not None else "make it once, in __init__",
        Applicability.SAFE if hints else Applicability.DISPLAY_ONLY,
        confidence=None if loop is not None else Confidence.MEDIUM,
        hints=hints,
    )


def _is_layer(code: Code, call: ast.Call) -> bool:
    """Put into a container of layers: a net is built here, which nobody does for every batch."""
    return any(
        isinstance(outer, ast.Call) and code.full_name(outer.func) in _CONTAINERS
        for outer in code.ancestors(call)
        if not isinstance(outer, ast.stmt)
    )


def _is_stateless(call: ast.Call) -> bool:
    return last_name(call.func).endswith("Loss") and all(is_invariant(one, set()) for one in call.args)


def _parameters(code: Code, call: ast.Call) -> set[str]:
    """In a function called every batch, its arguments and what it sets may change; `self` stays."""
    function = code.function(call)
    if function is None:
        return set()
    names = {one.arg for one in (*function.args.args, *function.args.kwonlyargs, *function.args.posonlyargs)}
    return (names | code.stored(function)) - {"self"} - _settled(function, names)


def _settled(function: Definition, parameters: set[str]) -> set[str]:
    """Names that are set once, in no loop, to something that stays: `half = self.width // 2`, `device = x.device`."""
    once = [pair for one in function.body if isinstance(one, ast.Assign) for pair in _pairs(one)]
    stores = [
        one.id for one in walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    ]  # fmt: skip
    found: set[str] = set()
    for name, value in once:
        changing = (parameters | set(stores)) - {"self"} - found
        place = isinstance(value, ast.Attribute) and value.attr in ("device", "dtype")
        if stores.count(name) == 1 and (place or (_is_of_self(value) and is_invariant(value, changing))):
            found.add(name)
    return found


def _pairs(statement: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Names and what they are set to, also of `device, size = x.device, self.size`."""
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, part in zip(target.elts, value.elts, strict=True):
            if isinstance(one, ast.Name):
                yield one.id, part


def _is_of_self(value: ast.expr) -> bool:
    """Made of attributes of the object: plain constants are mostly the start of a sum."""
    return any(isinstance(one, ast.Name) and one.id == "self" for one in walk(value))


def _moved(code: Code, call: ast.Call, changing: set[str]) -> ast.Call:
    """With `.to(device)` and the like after it."""
    here = call
    while True:
        attribute = code.parent(here)
        outer = code.parent(attribute) if isinstance(attribute, ast.Attribute) else None
        if not isinstance(outer, ast.Call) or not isinstance(attribute, ast.Attribute) or outer.func is not attribute:
            return here
        if attribute.attr not in ("to", "cuda", "float", "long", "half", "view", "unsqueeze", "reshape", "double"):
            return here
        if not all(is_invariant(one, changing) for one in outer.args):
            return here
        here = outer


def _is_start_of_sum(code: Code, call: ast.Call) -> bool:
    """`loss = torch.zeros(1)`, then added to: it must start anew."""
    statement = code.statement(call)
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or _is_part(code, call, statement):
        return False
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    if isinstance(target, ast.Tuple) and isinstance(
        statement.value, ast.Tuple
    ):  # a, b = torch.zeros(1), torch.zeros(1)
        made = zip(target.elts, statement.value.elts, strict=False)
        target = next((one for one, value in made if any(part is call for part in walk(value))), target)
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
    """An argument of an operation that makes something new: `torch.exp(torch.arange(n) * -scale)`."""
    for outer in code.ancestors(call):
        if outer is statement:
            return False
        if isinstance(outer, ast.Call) and code.full_name(outer.func).startswith("torch."):
            return True
    return False


def _hoisting(code: Code, node: ast.Call, loop: Repeated | None) -> dict[str, str]:
    """Where the whole statement can be moved to, when nobody changes what it makes."""
    statement = code.statement(node)
    if loop is None or not isinstance(statement, ast.Assign) or statement.value is not node:
        return {}
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or len(statement.targets) != 1 or statement not in loop.body:
        return {}
    if is_changed(code, target.id, loop.body, statement) or not _is_known(code, loop):
        return {}
    return {"loop": position_of(loop, code.lines), "statement": position_of(statement, code.lines)}


def _is_known(code: Code, loop: Repeated) -> bool:
    """Not the other branch of something: a statement can be put before it."""
    parent = code.parent(loop)
    return isinstance(
        parent, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.For | ast.With | ast.If | ast.While
    )
