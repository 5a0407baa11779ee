"""Finds Python loops over the elements or rows of tensors and arrays."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache

from hotlap.analysis.parse.terms import EXTENT, MODULE, NUMPY, TENSORS
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.samples import mentions

ARRAYS = TENSORS | {NUMPY}
_PARTS = frozenset(  # methods that give several things
    "split chunk unbind tolist items values keys get copy forward parameters named_parameters modules named_modules "
    "children named_children buffers state_dict".split()
)
_SEVERAL = frozenset(  # functions that give several tensors, or numbers to count with
    "torch.split torch.chunk torch.unbind torch.tensor_split torch.meshgrid torch.where torch.arange torch.randperm "
    "numpy.ndindex numpy.arange numpy.ndenumerate numpy.split numpy.array_split numpy.where numpy.meshgrid".split()
)
_OF_TENSORS = frozenset("is_cuda size dim numel ndim shape requires_grad".split())


@dataclass(frozen=True)
class ElementLoop:
    loop: ast.For
    arrays: tuple[ast.expr, ...]  # what the loop iterates over
    names: frozenset[str]  # names that hold an element
    index: str  # the name that holds its index, or ""
    written: bool = False  # the loop writes numbers into the array, piece by piece
    fixed: bool = False  # the number of iterations is a literal: rows of a batch, or a few channels


@lru_cache(maxsize=2)
def element_loops(code: Code) -> tuple[ElementLoop, ...]:
    """Return the element loops of a file in code that runs every batch."""
    loops = [node for node in code.nodes(ast.For) if isinstance(node, ast.For) and code.heat(node.body[0]).hot]
    every = [_direct(code, node) or _first(code, node) for node in loops]
    return tuple(loop for loop in every if loop is not None)


def _first(code: Code, node: ast.For) -> ElementLoop | None:
    filled = _filled(code, node)
    return filled if filled is not None and filled.written else _numbered(code, node) or filled


def _direct(code: Code, node: ast.For) -> ElementLoop | None:
    """Match `for x in tensor`, also through enumerate, zip or a progress bar."""
    iterable, target = node.iter, node.target
    while isinstance(iterable, ast.Call) and last_name(iterable.func) in ("tqdm", "enumerate", "list", "reversed"):
        if not iterable.args:
            return None
        if last_name(iterable.func) == "enumerate":
            if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
                return None
            target = target.elts[1]
        iterable = iterable.args[0]
    zipped = isinstance(iterable, ast.Call) and last_name(iterable.func) == "zip"
    arrays = [argument for argument in iterable.args if _is_array(code, argument)] if zipped else []  # type: ignore[attr-defined]
    if not zipped and _is_array(code, iterable):
        arrays = [iterable]
    whole = len(iterable.args) if zipped else 1  # type: ignore[attr-defined]
    if not arrays or len(arrays) * 2 < whole:
        return None
    names = frozenset(part.id for part in walk(target) if isinstance(part, ast.Name))
    return ElementLoop(node, tuple(arrays), names, "")


def _numbered(code: Code, node: ast.For) -> ElementLoop | None:
    """Match `for i in range(len(tensor))` with `tensor[i]` in the body."""
    if not isinstance(node.target, ast.Name) or not isinstance(node.iter, ast.Call):
        return None
    if last_name(node.iter.func) not in ("range", "trange") or not node.iter.args:
        return None
    index = node.target.id
    found = [
        part.value
        for statement in node.body
        for part in walk(statement)
        if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Load) and _starts_with(part.slice, index)
        if _is_array(code, part.value) or _has_size(node.iter, part.value)
    ]
    if found and isinstance(node.iter.args[-1], ast.Constant):
        return ElementLoop(node, tuple(found), frozenset(), index, fixed=True)
    if not found or not _is_length(code, node.iter.args[-1] if len(node.iter.args) < 3 else node.iter.args[1], found):
        return None
    return ElementLoop(node, tuple(found), frozenset(), index)


def _filled(code: Code, node: ast.For) -> ElementLoop | None:
    """Match `for i, k in enumerate(codes): table[i][k] = 1`, which writes a tensor number by number."""
    names = {part.id for part in walk(node.target) if isinstance(part, ast.Name)}
    for statement in (inner for part in node.body for inner in walk(part)):
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Subscript):
            continue
        base, places = _places(statement.targets[0])
        counted = isinstance(statement.value, ast.Constant)
        single = all(isinstance(place, ast.Name | ast.Constant) for place in places)
        moving = any(isinstance(place, ast.Name) and place.id in names for place in places)
        counted_rows = _counts_rows(code, node) or _enumerates(code, node, places[-1])
        own = next(code.loops(statement), None) is node
        rows = own and counted_rows and isinstance(places[0], ast.Name) and not _runs_model(code, node)
        if counted and moving and (rows or (single and statement in node.body)) and code.kind(base) in TENSORS:
            return ElementLoop(node, (base,), frozenset(names), "", written=rows)
    return None


def _enumerates(code: Code, node: ast.For, cut: ast.expr) -> bool:
    """Match `for i, length in enumerate(lengths): mask[i, length:] = 0` outside of data loading."""
    named = isinstance(node.iter, ast.Call) and last_name(node.iter.func) == "enumerate" and len(node.iter.args) == 1
    if not named or not isinstance(node.target, ast.Tuple) or not isinstance(cut, ast.Slice):
        return False
    given = {part.id for part in walk(node.target) if isinstance(part, ast.Name)}
    ends = [end for end in (cut.lower, cut.upper) if isinstance(end, ast.Name) and end.id in given]
    return bool(ends) and code.hot(node.body[0])


def _counts_rows(code: Code, node: ast.For) -> bool:
    """Match `for i in range(batch_size)`, where the number is not a literal."""
    ranged = isinstance(node.iter, ast.Call) and last_name(node.iter.func) == "range" and len(node.iter.args) == 1
    if not ranged or not isinstance(node.iter, ast.Call):
        return False
    many = node.iter.args[0]
    return code.kind(many) == EXTENT or (isinstance(many, ast.Name) and "batch" in many.id.lower())


def _runs_model(code: Code, node: ast.For) -> bool:
    return any(
        isinstance(inner, ast.Call) and code.callee_kind(inner) == MODULE for part in node.body for inner in walk(part)
    )


def _places(node: ast.expr) -> tuple[ast.expr, list[ast.expr]]:
    """Return `table`, and `i` and `k`, for table[i][k] and table[i, k]."""
    places: list[ast.expr] = []
    while isinstance(node, ast.Subscript):
        places += node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        node = node.value
    return node, places


def _has_size(iterable: ast.expr, node: ast.expr) -> bool:
    """Match `range(x.size(0))`: only tensors have a method `size`."""
    name = ast.unparse(node)
    return any(
        isinstance(call, ast.Call) and call.args and isinstance(call.func, ast.Attribute) and call.func.attr == "size"
        and ast.unparse(call.func.value) == name
        for call in walk(iterable)
    )  # fmt: skip


def _starts_with(node: ast.expr, index: str) -> bool:
    """Match `[i]` and `[i, j]`, but not `[:, i]`, which is a column or a time step."""
    first = node.elts[0] if isinstance(node, ast.Tuple) and node.elts else node
    if isinstance(first, ast.Slice) and isinstance(node, ast.Tuple):  # [: lengths[i], i], of sequences side by side
        ends = [end for end in (first.lower, first.upper) if end is not None]
        first = node.elts[1] if any(mentions(end, {index}) for end in ends) else first
    return isinstance(first, ast.Name) and first.id == index


def _is_length(code: Code, node: ast.expr, arrays: list[ast.expr]) -> bool:
    """Return whether a number is the length of one of the arrays, or of a batch."""
    if code.kind(node) == EXTENT:
        return True
    names = {ast.unparse(array) for array in arrays}
    if isinstance(node, ast.Call) and last_name(node.func) == "size" and isinstance(node.func, ast.Attribute):
        return ast.unparse(node.func.value) in names
    if isinstance(node, ast.Call) and last_name(node.func) == "len" and node.args:
        return ast.unparse(node.args[0]) in names or _is_array(code, node.args[0])
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        return _is_array(code, node.value.value)
    if isinstance(node, ast.Name) and "batch" not in node.id.lower():
        made = _last_value(code, node)  # `n = inputs.size(0)`: only tensors have a size per dimension
        if isinstance(made, ast.Subscript):  # `n = inputs.shape[0]`
            return isinstance(made.value, ast.Attribute) and made.value.attr == "shape"
        return isinstance(made, ast.Call) and last_name(made.func) == "size" and bool(made.args)
    stored = isinstance(node, ast.Attribute | ast.Subscript) and "batch" in ast.unparse(node).rpartition(".")[2].lower()
    return isinstance(node, ast.Name) or stored


def _is_array(code: Code, node: ast.expr) -> bool:
    kind = code.kind(node)
    if kind not in ARRAYS:
        return False
    return not _may_be_list(code, node)


def _may_be_list(code: Code, node: ast.expr) -> bool:
    """Return whether a value may be a list: a model may return a tuple of tensors, and a batch may be a list of them,
    so only an operation proves a tensor."""
    if isinstance(node, ast.Name):
        made = _last_value(code, node)
        return not _is_said(code, node) if made is None else _may_be_list(code, made)
    if isinstance(node, ast.Call):
        if code.callee_kind(node) == MODULE:
            return True
        name = code.full_name(node.func)
        if name:
            return name in _SEVERAL or name.startswith(("torch.nn.utils", "numpy.load", "numpy.random."))
        return not isinstance(node.func, ast.Attribute) or _may_be_list_of_method(code, node, node.func)
    if isinstance(node, ast.Attribute):
        return node.attr not in ("data", "grad", "T")
    if isinstance(node, ast.Subscript):
        held = code.term(node.value)
        if isinstance(held, tuple) and held[0] == "dict" and held[1] in TENSORS and _is_said(code, node.value):
            return False
        return not isinstance(node.slice, ast.Tuple) and _may_be_list(code, node.value)
    return not isinstance(node, ast.BinOp | ast.Compare | ast.UnaryOp)


def _is_said(code: Code, node: ast.expr) -> bool:
    """Match an argument annotated as a tensor or a mapping of tensors, or one used for what only arrays have."""
    function = code.function(node)
    if function is None or not isinstance(node, ast.Name):
        return False
    every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    hint = next((parameter.annotation for parameter in every if parameter.arg == node.id), None)
    if hint is None and any(parameter.arg == node.id for parameter in every):
        return any(
            isinstance(part, ast.Attribute) and part.attr in _OF_TENSORS and getattr(part.value, "id", "") == node.id
            for part in walk(function)
        )
    return hint is not None and "Tensor" in ast.unparse(hint) and "List" not in ast.unparse(hint).title()


def _may_be_list_of_method(code: Code, node: ast.Call, function: ast.Attribute) -> bool:
    if function.attr in ("to", "cuda"):  # of a tensor, or of whatever a framework made
        return isinstance(function.value, ast.Call) and _may_be_list(code, function.value)
    return function.attr in _PARTS or code.kind(function.value) == MODULE


def _last_value(code: Code, node: ast.Name) -> ast.expr | None:
    """Return what the name was last set to above, in the same function; None for arguments and loop variables."""
    scope = code.function(node) or code.tree
    best: ast.expr | None = None
    for statement in walk(scope):
        if isinstance(statement, ast.Assign) and statement.lineno < node.lineno:
            for target in statement.targets:
                if isinstance(target, ast.Name) and target.id == node.id:
                    best = statement.value
                elif isinstance(target, ast.Tuple) and any(getattr(part, "id", "") == node.id for part in target.elts):
                    best = _part(target, statement.value, node.id)
    return best


def _part(target: ast.Tuple, value: ast.expr, name: str) -> ast.expr | None:
    """Return the value that the name gets in `a, b = x.to(d), y.to(d)` or `values, indices = torch.max(…)`."""
    if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
        return value.elts[[getattr(part, "id", "") for part in target.elts].index(name)]
    made_pair = isinstance(value, ast.Call) and last_name(value.func) in (
        "max",
        "min",
        "topk",
        "sort",
        "median",
        "kthvalue",
    )
    return value if made_pair else None
