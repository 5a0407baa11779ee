"""Finds tensors made on the host only to be moved to the device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from hotlap.analysis.names.classes import Reference
from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.parse.statements import is_static
from hotlap.analysis.parse.terms import BATCH, EXTENT, HOST, NUMBER, NUMPY, TENSOR, UNKNOWN, Term
from hotlap.analysis.parse.torch_names import CONSTRUCTORS, CREATION, LIKE, RANDOM
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Definition, Project, keyword, last_name, spread
from hotlap.analysis.queries.environments import is_acting
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.syncs import shown
from hotlap.analysis.queries.transfers import is_device, transfers
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = (".to(", "cuda(", ".type_as(", "device(")
ONLY_HOT = True
_BETWEEN = frozenset(
    "float long half double bool int unsqueeze view reshape requires_grad_ squeeze uniform_ normal_ random_ "
    "fill_ zero_ repeat expand contiguous transpose permute flatten expand_as type clone t masked_fill detach".split()
)
_OF_ARRAYS = frozenset("astype flatten ravel reshape transpose copy".split())
_JOINS = frozenset(f"torch.{name}" for name in "cat stack concat hstack vstack".split())
_SHAPED = frozenset(f"torch.{name}" for name in "tril triu diag flip cumsum sin cos exp".split())


def find(code: Code) -> Iterator[Found]:
    for call, moved, device in (*transfers(code), *_like(code), *_through_helpers(code)):
        if keeps_constant(code, moved) and code.hot(call):
            yield _of_constant(code, call, moved)
            continue
        made = _made(code, moved) or _made_before(code, moved) or _made_by(code, moved) or _made_of(code, moved)
        if made is None or not code.hot(call) or _is_there(made, device):
            continue
        short = code.full_name(made.func).rsplit(".", 1)[-1]
        text = ast.unparse(device) if device is not None else '"cuda"'
        fixable = (
            made is moved
            and bool(short)
            and not spread(made)
            and _only_device(call, device)
            and short not in CONSTRUCTORS
        )
        repair = f"torch.tensor(…, device={text})" if short in CONSTRUCTORS else f"device={text}"
        yield Found(
            call,
            f"`{shown(call)}` makes a tensor on the host and copies it {code.heat(call).frequency}",
            f"make it where it is needed: {repair}",
            (Applicability.UNSAFE if short in RANDOM else Applicability.SAFE)
            if fixable
            else Applicability.DISPLAY_ONLY,
            confidence=Confidence.LOW if _is_data(code, made, short) or _is_observed(code, made) else None,
            hints={"made": position_of(made, code.lines), "device": text} if fixable else {},
        )


def _is_there(made: ast.Call, device: ast.expr | None) -> bool:
    """Whether it is `torch.zeros_like(w).to(w.device)`, which copies nothing."""
    where = ast.unparse(device.value) if isinstance(device, ast.Attribute) and device.attr == "device" else ""
    return last_name(made.func) in LIKE and bool(made.args) and ast.unparse(made.args[0]) == where


def _is_data(code: Code, made: ast.Call, short: str) -> bool:
    """Whether it is `torch.as_tensor(rows)`, with new data in every batch that must be copied, wherever it is made."""
    given = made.args[0] if made.args else None
    if short not in ("as_tensor", "tensor", "Tensor", "FloatTensor", "LongTensor", "BoolTensor"):
        return False
    if isinstance(given, ast.Compare):
        given = given.left
    if isinstance(given, ast.ListComp):
        return not _counts(given.generators[0].iter)
    if isinstance(given, ast.Name) and _comes_anew(code, given):
        return True
    if isinstance(given, ast.Name) and code.kind(given) != NUMPY:
        loop = next(code.loops(made), None)
        own = isinstance(loop, ast.For) and given.id in code.stored(loop.target)
        return own or (short == "as_tensor" and _is_argument(code, given))
    return isinstance(given, ast.Name | ast.Subscript) and code.kind(given) == NUMPY


def _counts(iterable: ast.expr) -> bool:
    return isinstance(iterable, ast.Call) and last_name(iterable.func) == "range"


def _comes_anew(code: Code, name: ast.Name) -> bool:
    """Whether the function sets the name to rows of an array, the result of a call, or a list that is filled."""
    function = code.function(name)
    if function is None or code.kind(name) in (NUMBER, EXTENT, TENSOR):
        return False
    made = [
        (target, statement.value)
        for statement in walk(function)
        if isinstance(statement, ast.Assign) and statement.lineno < name.lineno
        for target in statement.targets
        if any(isinstance(node, ast.Name) and node.id == name.id for node in walk(target))
    ]
    return bool(made) and all(isinstance(target, ast.Tuple) or _is_rows(code, value) for target, value in made)


def _is_rows(code: Code, value: ast.expr) -> bool:
    if isinstance(value, ast.ListComp):
        return not _counts(value.generators[0].iter)
    if isinstance(value, ast.Call):
        return not code.project.targets(code.asked(value.func), code.path)
    return isinstance(value, ast.Subscript) or (isinstance(value, ast.List) and not value.elts)


def _is_observed(code: Code, made: ast.Call) -> bool:
    """Whether it holds what an environment shows to an acting agent: that comes from the host in any case."""
    given = [node for node in walk(made.args[0]) if isinstance(node, ast.Name)] if made.args else []
    return any(_is_argument(code, name) for name in given) and is_acting(code, made)


def _is_argument(code: Code, name: ast.Name) -> bool:
    """Whether a name is an argument of the function or the variable of a comprehension."""
    function = code.function(name)
    taken = any(
        isinstance(node, ast.Name) and node.id == name.id
        for outer in code.ancestors(name)
        for generator in getattr(outer, "generators", ())
        for node in walk(generator.target)
    )
    return taken or (function is not None and any(parameter.arg == name.id for parameter in function.args.args))


def _of_constant(code: Code, call: ast.Call, moved: ast.expr) -> Found:
    return Found(
        call,
        f"`{shown(call)}` copies the same host tensor {code.heat(call).frequency}",
        "keep it on the device: self.register_buffer, or move it once",
        confidence=Confidence.MEDIUM,
    )


def keeps_constant(code: Code, moved: ast.expr) -> bool:
    """Whether it is `self.weights.to(x.device)`, with a tensor that the object made on the host and leaves there."""
    while isinstance(moved, ast.Call) and isinstance(moved.func, ast.Attribute) and moved.func.attr in _BETWEEN:
        moved = moved.func.value
    if isinstance(moved, ast.Name):
        return _is_of_file(code, moved)
    is_attribute = isinstance(moved, ast.Attribute) and isinstance(moved.value, ast.Name) and moved.value.id == "self"
    return is_attribute and code.kind(moved) == HOST and _is_made_once(code, ast.unparse(moved))


def _is_of_file(code: Code, name: ast.Name) -> bool:
    """Whether a name is like `WEIGHTS`, which the file made on the host when imported, or imported itself."""
    function = code.function(name)
    if function is None or code.kind(name) != HOST or name.id in code.stored(function):
        return False
    parameters = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    around = any(isinstance(outer, Definition | ast.Lambda) for outer in code.ancestors(function))
    return not around and all(parameter.arg != name.id for parameter in parameters)


def _is_made_once(code: Code, name: str) -> bool:
    """Whether the file sets the attribute in constructors only."""
    setters = [
        code.function(node)
        for node in code.nodes(ast.Assign, ast.AnnAssign)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and ast.unparse(target) == name
    ]
    return bool(setters) and all(setter is not None and setter.name == "__init__" for setter in setters)


@lru_cache(maxsize=2)
def _movers(project: Project) -> dict[Reference, int]:
    """Return functions that return one of their arguments, moved: `def to_gpu(x): return x.cuda()`."""
    found = {}
    for reference, function in project.functions():
        number = _moved_argument(function.returns, function.name)
        if number >= 0 and not (function.owner and number == 0):
            found[reference] = number - 1 if function.owner and not is_static(function) else number
    return found


def _moved_argument(returned: Term, name: str) -> int:
    if not isinstance(returned, tuple) or returned[0] not in ("moved", "join"):
        return -1
    if returned[0] == "join":
        return max(_moved_argument(alternative, name) for alternative in returned[1:])
    inner = returned[1]
    return int(inner[2]) if isinstance(inner, tuple) and inner[0] == "param" and inner[1] == name else -1


def _through_helpers(code: Code) -> Iterator[tuple[ast.Call, ast.expr, ast.expr | None]]:
    """Yield calls like `to_gpu(torch.zeros(n))`."""
    movers = _movers(code.project)
    for call in code.calls(*{reference.name.rsplit(".", 1)[-1] for reference in movers}) if movers else ():
        for target in code.project.targets(code.asked(call.func), code.path):
            if target in movers and movers[target] < len(call.args):
                yield call, call.args[movers[target]], None


def _like(code: Code) -> Iterator[tuple[ast.Call, ast.expr, ast.expr]]:
    """Yield calls like `torch.zeros(n).type_as(x)`, which move a tensor to where another one is."""
    for call in code.calls("type_as", "to"):
        if isinstance(call.func, ast.Attribute) and len(call.args) == 1 and code.kind(call.args[0]) == TENSOR:
            target = call.args[0]
            yield call, call.func.value, ast.Attribute(target, "device", ast.Load())
        device = keyword(call, "device")
        if not isinstance(device, ast.Attribute) or device.attr != "device" or call.args or is_device(code, device):
            continue
        if isinstance(call.func, ast.Attribute) and call.func.attr == "to":
            yield call, call.func.value, device


def _made(code: Code, node: ast.expr) -> ast.Call | None:
    """Return the torch.zeros(…) at the beginning of a chain of calls."""
    node = _alone(code, node)
    while isinstance(node, ast.Call):
        name = code.full_name(node.func)
        short = name[6:]
        if name.startswith("torch.") and short in CREATION:
            like = short in LIKE and not (node.args and code.kind(node.args[0]) in (HOST, BATCH))
            data = short == "from_numpy" and not (node.args and _is_constant(code, node.args[0]))
            return None if like or data or keyword(node, "device") is not None else node
        if name.startswith("torch.") and short in CONSTRUCTORS and node.args:
            return node
        if (name in _SHAPED or name.endswith("autograd.Variable")) and node.args:
            node = node.args[0]
            continue
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in _BETWEEN:
            return None
        node = _alone(code, node.func.value)
    return None


def _is_constant(code: Code, array: ast.expr) -> bool:
    """Whether an array is the same every time, `np.eye(size).flatten()` or `np.array([1, 0, 0, 1]).astype(…)`."""
    while isinstance(array, ast.Call) and isinstance(array.func, ast.Attribute) and array.func.attr in _OF_ARRAYS:
        array = array.func.value
    if not isinstance(array, ast.Call) or not array.args:
        return False
    name = code.full_name(array.func)
    listed = name == "numpy.array" and all(
        not isinstance(node, ast.Name | ast.Attribute) for node in walk(array.args[0])
    )
    return listed or name in ("numpy.eye", "numpy.identity", "numpy.zeros", "numpy.ones")


def _alone(code: Code, node: ast.expr) -> ast.expr:
    """Return the tensor in arithmetic with plain numbers, or with a new dimension: `1 - torch.eye(n)[None]`."""
    if isinstance(node, ast.Subscript) and _only_adds(node.slice):
        node = node.value
    while isinstance(node, ast.BinOp):
        left, right = code.kind(node.left), code.kind(node.right)
        if left == HOST and right in (NUMBER, UNKNOWN, EXTENT):
            node = node.left
        elif right == HOST and left in (NUMBER, UNKNOWN, EXTENT):
            node = node.right
        else:
            return node
    return node


def _only_adds(index: ast.expr) -> bool:
    """Whether an index only adds dimensions: `[None, :, :]`."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(ast.unparse(part) in ("None", ":") for part in parts)


def _made_before(code: Code, node: ast.expr) -> ast.Call | None:
    """Return `torch.ones(n)` of `mask = torch.ones(n)`, if only `mask = mask.to(device)` follows and no write to it."""
    function = code.function(node)
    if not isinstance(node, ast.Name) or function is None:
        return None
    uses = [used for used in walk(function) if isinstance(used, ast.Name) and used.id == node.id]
    uses = [used for used in uses if used.lineno < node.lineno]
    last = max(
        (used.lineno for used in uses if isinstance(used.ctx, ast.Store) and not _follows(code, used)), default=0
    )
    after = [used for used in uses if used.lineno >= last]
    statements = [
        code.statement(used)
        for used in after
        if used.lineno == last or not (_follows(code, used) or _is_written(code, used) or _is_shape(code, used))
    ]
    if len(statements) != 1 or not isinstance(statements[0], ast.Assign):
        return None  # read or written in between
    made = _made(code, _operand(code, statements[0].value))
    short = code.full_name(made.func)[6:] if made is not None else ""
    holds = short in ("tensor", "as_tensor", *CONSTRUCTORS)
    return made if made is not None and (not holds or isinstance(made.args[0], ast.Constant)) else None


def _is_written(code: Code, name: ast.Name) -> bool:
    """Whether it is `mask[lengths == 0] = 1` or `rows[i] = self.draw(scores)`: a number, or a value from the device."""
    statement = code.statement(name)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(target, ast.Subscript) or not isinstance(statement, ast.Assign):
        return False
    places = [used for used in walk(target.slice) if isinstance(used, ast.Name) and not _is_shape(code, used)]
    if any(code.kind(used) in (BATCH, HOST) and used.id != name.id for used in places):
        return False  # where it is written, only the host knows
    if name is not target.value:
        return _is_inside(code, name, target.slice)
    value = statement.value
    plain = isinstance(value, ast.Constant) or code.kind(value) in (NUMBER, TENSOR, HOST)
    return plain or (isinstance(value, ast.Call) and any(code.kind(argument) == TENSOR for argument in value.args))


def _is_inside(code: Code, node: ast.AST, outer: ast.AST) -> bool:
    return node is outer or outer in code.ancestors(node)


def _is_shape(code: Code, name: ast.Name) -> bool:
    """Whether only the size is used, as in `mask.size(1)` or `x.expand_as(mask)`."""
    parent = code.parent(name)
    if isinstance(parent, ast.Attribute):
        return parent.attr in ("size", "shape", "dtype", "dim", "numel")
    return isinstance(parent, ast.Call) and last_name(parent.func) in ("expand_as", "view_as", "len")


def _made_by(code: Code, node: ast.expr) -> ast.Call | None:
    """Return `subsequent_mask(length)`: a function of the project that gets no tensor and returns one on the host."""
    if not isinstance(node, ast.Call) or code.kind(node) != HOST or spread(node):
        return None
    given = [*node.args, *(word.value for word in node.keywords)]
    plain = bool(given) and all(
        code.kind(value) in (NUMBER, EXTENT) or isinstance(value, ast.Constant) for value in given
    )
    return node if plain and code.project.targets(code.asked(node.func), code.path) else None


def _made_of(code: Code, node: ast.expr) -> ast.Call | None:
    """Return the first tensor of `torch.cat([first, second])` if the same function makes all of them on the host."""
    if code.kind(node) != HOST:
        return None
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _BETWEEN:
        node = node.func.value
    if isinstance(node, ast.Name):
        values = _values(code, node)
        node = values[0] if len(values) == 1 else node
    if not isinstance(node, ast.Call) or code.full_name(node.func) not in _JOINS or not node.args:
        return None
    constructors = [_made(code, element) for element in _listed(code, node.args[0])]
    return constructors[0] if constructors and all(constructor is not None for constructor in constructors) else None


def _listed(code: Code, given: ast.expr) -> list[ast.expr]:
    """Return the elements of a list, as written or as appended."""
    if isinstance(given, ast.List | ast.Tuple):
        groups = [_values(code, element) if isinstance(element, ast.Name) else [element] for element in given.elts]
        return [value for values in groups for value in (values or [given])]
    function = code.function(given)
    if isinstance(given, ast.ListComp):
        return [given.elt]
    if not isinstance(given, ast.Name) or function is None:
        return []
    return [
        call.args[0]
        for call in code.calls("append")
        if isinstance(call.func, ast.Attribute) and call.args and code.function(call) is function
        if isinstance(call.func.value, ast.Name) and call.func.value.id == given.id
    ]


def _values(code: Code, name: ast.Name) -> list[ast.expr]:
    """Return every value to which the function sets a name before."""
    function = code.function(name)
    return [
        statement.value
        for statement in (walk(function) if function is not None else ())
        if isinstance(statement, ast.Assign) and statement.lineno < name.lineno
        if any(isinstance(target, ast.Name) and target.id == name.id for target in statement.targets)
    ]


def _follows(code: Code, name: ast.Name) -> bool:
    """Whether it is `mask = mask.repeat(1, n)`: the same tensor in another shape."""
    statement = code.statement(name)
    value = statement.value if isinstance(statement, ast.Assign) else None
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _BETWEEN:
        value = value.func.value
    return isinstance(value, ast.Name) and value.id == name.id


def _operand(code: Code, value: ast.expr) -> ast.expr:
    """Return the tensor in arithmetic with plain numbers: `(up - down) * torch.rand(n) + down`."""
    while isinstance(value, ast.BinOp):
        value = value.left if any(isinstance(node, ast.Call) for node in walk(value.left)) else value.right
    return value


def _only_device(call: ast.Call, device: ast.expr | None) -> bool:
    """Whether .to(…) names only the device and whether to wait; a tensor in its place also sets the dtype."""
    given = [*call.args, *(word.value for word in call.keywords)]
    if device is not None and device not in given:
        return False
    return len(call.args) <= 1 and all(word.arg in ("device", "non_blocking") for word in call.keywords)
