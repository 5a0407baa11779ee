"""Tensors made on the host only to be moved to the device."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.model.scanned import Applicability
from hotlap.source.code import Code, keyword, spread
from hotlap.source.positions import position_of
from hotlap.source.rule import Found
from hotlap.source.syncs import shown
from hotlap.source.terms import EXTENT, HOST, NUMBER, TENSOR, UNKNOWN
from hotlap.source.torch_names import CONSTRUCTORS, CREATION, LIKE, RANDOM
from hotlap.source.transfers import transfers

WORDS = (".to(", ".cuda(", ".type_as(")
ONLY_HOT = True
_BETWEEN = frozenset(
    "float long half double bool int unsqueeze view reshape requires_grad_ squeeze uniform_ normal_ random_ "
    "fill_ zero_ repeat expand".split()
)
_SHAPED = frozenset(f"torch.{name}" for name in "tril triu diag flip cumsum sin cos exp".split())


def find(code: Code) -> Iterator[Found]:
    for call, moved, device in (*transfers(code), *_like(code)):
        made = _made(code, moved) or _made_before(code, moved)
        if made is None or not code.hot(call):
            continue
        short = code.full_name(made.func).rsplit(".", 1)[-1]
        text = ast.unparse(device) if device is not None else '"cuda"'
        fixable = made is moved and not spread(made) and _only_device(call, device) and short not in CONSTRUCTORS
        repair = f"torch.tensor(…, device={text})" if short in CONSTRUCTORS else f"device={text}"
        yield Found(
            call,
            f"`{shown(call)}` makes a tensor on the host and copies it {code.heat(call).frequency.value}",
            f"make it where it is needed: {repair}",
            (Applicability.UNSAFE if short in RANDOM else Applicability.SAFE)
            if fixable
            else Applicability.DISPLAY_ONLY,
            hints={"made": position_of(made, code.lines), "device": text} if fixable else {},
        )


def _like(code: Code) -> Iterator[tuple[ast.Call, ast.expr, ast.expr]]:
    """`torch.zeros(n).type_as(x)`: moved to where the other tensor is."""
    for call in code.calls("type_as", "to"):
        if isinstance(call.func, ast.Attribute) and len(call.args) == 1 and code.kind(call.args[0]) == TENSOR:
            other = call.args[0]
            yield call, call.func.value, ast.Attribute(other, "device", ast.Load())


def _made(code: Code, node: ast.expr) -> ast.Call | None:
    """The torch.zeros(…) at the beginning of a chain of calls."""
    node = _alone(code, node)
    while isinstance(node, ast.Call):
        name = code.full_name(node.func)
        short = name[6:]
        if name.startswith("torch.") and short in CREATION:
            known = short in LIKE or short == "from_numpy" or keyword(node, "device") is not None
            return None if known else node
        if name.startswith("torch.") and short in CONSTRUCTORS and node.args:
            return node
        if name in _SHAPED and node.args:
            node = node.args[0]
            continue
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in _BETWEEN:
            return None
        node = _alone(code, node.func.value)
    return None


def _alone(code: Code, node: ast.expr) -> ast.expr:
    """The tensor of arithmetic with plain numbers: `1 - torch.eye(n)`."""
    while isinstance(node, ast.BinOp):
        left, right = code.kind(node.left), code.kind(node.right)
        if left == HOST and right in (NUMBER, UNKNOWN, EXTENT):
            node = node.left
        elif right == HOST and left in (NUMBER, UNKNOWN, EXTENT):
            node = node.right
        else:
            return node
    return node


def _made_before(code: Code, node: ast.expr) -> ast.Call | None:
    """`mask = torch.ones(n)`, then `mask = mask.to(device)`, and nothing was written into it on the host."""
    function = code.function(node)
    if not isinstance(node, ast.Name) or function is None:
        return None
    before = [one for one in ast.walk(function) if isinstance(one, ast.Name) and one.id == node.id]
    before = [one for one in before if one.lineno < node.lineno]
    last = max((one.lineno for one in before if isinstance(one.ctx, ast.Store) and not _follows(code, one)), default=0)
    statements = [
        code.statement(one) for one in before if one.lineno >= last and not (one.lineno > last and _follows(code, one))
    ]
    if len(statements) != 1 or not isinstance(statements[0], ast.Assign):
        return None  # read or written in between
    made = _made(code, _operand(code, statements[0].value))
    short = code.full_name(made.func)[6:] if made is not None else ""
    return made if short not in ("tensor", "as_tensor", *CONSTRUCTORS) else None


def _follows(code: Code, name: ast.Name) -> bool:
    """`mask = mask.repeat(1, n)`: the same tensor in another shape."""
    statement = code.statement(name)
    value = statement.value if isinstance(statement, ast.Assign) else None
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _BETWEEN:
        value = value.func.value
    return isinstance(value, ast.Name) and value.id == name.id


def _operand(code: Code, value: ast.expr) -> ast.expr:
    """Of arithmetic with plain numbers, the tensor: `(up - down) * torch.rand(n) + down`."""
    while isinstance(value, ast.BinOp):
        value = value.left if any(isinstance(one, ast.Call) for one in ast.walk(value.left)) else value.right
    return value


def _only_device(call: ast.Call, device: ast.expr | None) -> bool:
    """Nothing but the device, and how to wait, is said in .to(…); a tensor in its place says its type as well."""
    given = [*call.args, *(word.value for word in call.keywords)]
    if device is not None and device not in given:
        return False
    return len(call.args) <= 1 and all(word.arg in ("device", "non_blocking") for word in call.keywords)
