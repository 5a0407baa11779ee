"""Finds Python loops over the elements of a tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.terms import BATCH, NUMPY, TENSOR, TENSORS, UNKNOWN
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.element_work import counts, is_scalar_work, is_sequential, is_worked_on, reads_elements
from hotlap.analysis.queries.elements import ElementLoop, element_loops
from hotlap.analysis.queries.groups import group_loops
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import mentions, only_shows, per_sample
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Confidence

WORDS = ("for ",)
PREVIEW = True  # five of its six findings in code that nobody here knew were arguable
SEVERITY = "high"
ONLY_HOT = True
_ELEMENTWISE = frozenset(
    f"torch.{name}"
    for name in "logical_or logical_and logical_xor maximum minimum add sub mul div where eq ne gt lt ge le abs "
    "clamp exp log sqrt pow fmod atan2".split()
)

_CONSTRUCTORS = ("torch.tensor", "torch.LongTensor", "torch.FloatTensor", "torch.IntTensor", "torch.Tensor")


def find(code: Code) -> Iterator[Found]:
    yield from _gathered(code)
    yield from _columns(code)
    yield from _nested(code)
    grouped = set()
    for node, over in group_loops(code):
        grouped.add(node)
        yield Found(
            over if isinstance(node, ast.For) else node,
            f"the loop over `{shown(over, 40)}` makes a mask of the whole batch for each of its groups",
            "work on all groups at once: F.one_hot, index_add, scatter_reduce or bincount",
            heat=code.heat(node),
            confidence=Confidence.MEDIUM,
        )
    for found in element_loops(code):
        heat = code.heat(found.loop.body[0])
        if (
            not heat.hot
            or found.fixed
            or found.loop in grouped
            or counts(found)
            or (is_sequential(found) and not _adds_samples(code, found))
            or only_shows(found.loop.body)
            or _is_type_checked(code, found)
        ):
            continue
        scalar = found.written or is_scalar_work(code, found) or _is_rowwise(code, found) or _adds_samples(code, found)
        if not scalar and (
            is_worked_on(code, found)
            or not (reads_elements(found, single=True) or _picks_by_mask(code, found))
            or not _on_device(code, found)
        ):
            continue
        yield Found(
            found.loop.iter,
            f"the loop over `{shown(found.arrays[0], 40)}` goes through a tensor element by element in Python",
            "work on the whole tensor at once, with comparisons, torch.where, masks and sums",
            heat=code.heat(found.loop).as_step(),
            confidence=_confidence(code, found, scalar),
        )


def _columns(code: Code) -> Iterator[Found]:
    """Find `torch.tensor([row[0] for row in batch])`: a column of a tensor, read number by number."""
    for node in code.nodes(ast.ListComp):
        assert isinstance(node, ast.ListComp)
        generator, picked, outer = node.generators[0], node.elt, code.parent(node)
        if not isinstance(picked, ast.Subscript) or not isinstance(outer, ast.Call) or len(node.generators) > 1:
            continue
        is_row = (
            isinstance(generator.target, ast.Name)
            and ast.unparse(picked.value) == generator.target.id
            and not generator.ifs
        )
        fixed = isinstance(picked.slice, ast.Constant) and isinstance(picked.slice.value, int)
        made = code.full_name(outer.func) in _CONSTRUCTORS and outer.args and outer.args[0] is node
        if is_row and fixed and made and code.hot(node) and code.kind(generator.iter) in (TENSOR, BATCH):
            yield Found(
                node,
                f"`{shown(picked, 40)}` is read separately for every row of `{shown(generator.iter, 40)}`",
                f"take the column: {shown(generator.iter, 40)}[:, {ast.unparse(picked.slice)}]",
                confidence=Confidence.MEDIUM,
            )


def _nested(code: Code) -> Iterator[Found]:
    """Find `[[x != pad for x in row] for row in ids.tolist()]`: every element of a tensor is tested separately."""
    for node in code.nodes(ast.ListComp):
        assert isinstance(node, ast.ListComp)
        generator, inner = node.generators[0], node.elt
        read = _read(generator.iter)
        if read is None or not isinstance(inner, ast.ListComp) or not isinstance(generator.target, ast.Name):
            continue
        rows = inner.generators[0].iter
        asks = any(isinstance(child, ast.Compare) for child in walk(inner))
        if asks and isinstance(rows, ast.Name) and rows.id == generator.target.id and _is_of_device(code, read):
            yield Found(
                node,
                f"`{shown(inner, 40)}` tests every element of `{shown(read, 40)}` in Python",
                "test the whole tensor on the device: `!=`, torch.isin, masks",
                confidence=Confidence.MEDIUM,
            )


def _read(node: ast.expr) -> ast.expr | None:
    """Return `ids` of `ids.tolist()`."""
    method = node.func if isinstance(node, ast.Call) else None
    return method.value if isinstance(method, ast.Attribute) and method.attr == "tolist" else None


def _is_of_device(code: Code, node: ast.expr) -> bool:
    """Whether it is a tensor on the device, perhaps copied to the host right here."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("cpu", "numpy"):
        node = node.func.value
    return code.kind(node) == TENSOR and code.hot(node)


def _gathered(code: Code) -> Iterator[Found]:
    """Find `torch.stack([table[i] for i in indices])`: each index is read from the device separately."""
    for node in code.nodes(ast.ListComp):
        assert isinstance(node, ast.ListComp)
        generator, picked = node.generators[0], node.elt
        if len(node.generators) > 1 or generator.ifs or not isinstance(picked, ast.Subscript) or not code.hot(node):
            continue
        same = isinstance(generator.target, ast.Name) and ast.unparse(picked.slice) == generator.target.id
        if same and code.kind(generator.iter) == TENSOR and code.kind(picked.value) in TENSORS:
            yield Found(
                node,
                f"`{shown(picked, 40)}` is looked up for one index of `{shown(generator.iter, 40)}` after another",
                f"index with the whole tensor: {shown(picked.value, 40)}[{shown(generator.iter, 40)}]",
            )


def _confidence(code: Code, found: ElementLoop, scalar: bool) -> Confidence | None:
    """Elements of an array cost a tenth of a tensor's, so they matter only where that is done for every sample."""
    if all(code.kind(array) == NUMPY for array in found.arrays):
        return Confidence.MEDIUM if per_sample(code, found.loop) else Confidence.LOW
    return None if scalar else Confidence.MEDIUM


def _adds_samples(code: Code, found: ElementLoop) -> bool:
    """Whether it is `for x, y in zip(inputs, targets): total = total + score(x, y)`, without a branch: the samples of a
    batch, which one operation can take all at once.
    """
    numbered = bool(found.index) and (_pairs_by_number(code, found) or _pairs_ragged(code, found))
    paired = numbered or (not found.index and bool(found.names) and _pairs(code, found))
    if not paired or not found.loop.body:
        return False
    nodes = [node for statement in found.loop.body for node in walk(statement)]
    if any(isinstance(node, ast.If | ast.Break | ast.Continue | ast.For | ast.While | ast.Try) for node in nodes):
        return False
    return any(isinstance(statement, ast.AugAssign | ast.Assign) and _adds(statement) for statement in found.loop.body)


def _pairs_by_number(code: Code, found: ElementLoop) -> bool:
    """Whether it is `loss_of(outputs[i], targets[i])`: whole rows of both, one surely a tensor on the device."""
    if not any(code.kind(array) == TENSOR for array in found.arrays):
        return False
    for call in (node for statement in found.loop.body for node in walk(statement) if isinstance(node, ast.Call)):
        rows = [
            argument
            for argument in call.args
            if isinstance(argument, ast.Subscript) and _is_number(argument.slice, found.index)
        ]
        if len(rows) > 1 and code.full_name(call.func).startswith("torch."):
            return {code.kind(row.value) for row in rows} <= {TENSOR, UNKNOWN}
    return False


def _pairs_ragged(code: Code, found: ElementLoop) -> bool:
    """Whether it is `score(outputs[: lengths[i], i], targets[: lengths[i], i])`: sequences of several lengths, which a
    mask handles all at once, and which only operations of torch use.
    """
    several = {ast.unparse(array) for array in found.arrays if code.kind(array) == TENSOR}
    nodes = [node for statement in found.loop.body for node in walk(statement)]
    cut = [node for node in nodes if isinstance(node, ast.Slice) and mentions(node, {found.index})]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    plain = all(
        isinstance(call.func, ast.Attribute) and not code.project.targets(code.asked(call.func), code.path)
        for call in calls
    )
    return len(several) > 1 and bool(cut) and plain


def _is_number(node: ast.expr, index: str) -> bool:
    return isinstance(node, ast.Name) and node.id == index


def _pairs(code: Code, found: ElementLoop) -> bool:
    """Whether the loop goes over several tensors, at least one of which is on the device, side by side."""
    given = found.loop.iter
    while isinstance(given, ast.Call) and last_name(given.func) == "enumerate" and given.args:
        given = given.args[0]
    zipped = isinstance(given, ast.Call) and last_name(given.func) == "zip" and len(given.args) > 1
    kinds = {code.kind(argument) for argument in given.args} if zipped else set()  # type: ignore[attr-defined]
    return TENSOR in kinds and kinds <= {TENSOR, UNKNOWN}


def _adds(statement: ast.AugAssign | ast.Assign) -> bool:
    """Whether it is `total += …` or `total = total + …`, with something that is computed."""
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.op, ast.Add) and not isinstance(statement.value, ast.Constant | ast.Name)
    target, value = statement.targets[0], statement.value
    added = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)
    return added and isinstance(target, ast.Name) and ast.unparse(value.left) == target.id  # type: ignore[attr-defined]


def _cuts(code: Code, value: ast.expr, index: str) -> bool:
    """Whether it is `discounts[: counts[i]].sum()`: the bound is read from the device in every iteration."""
    for node in walk(value):
        if isinstance(node, ast.Slice):
            ends = [bound for bound in (node.lower, node.upper) if isinstance(bound, ast.Subscript)]
            if any(ast.unparse(end.slice) == index and code.kind(end.value) == TENSOR for end in ends):
                return True
    return False


def _is_rowwise(code: Code, found: ElementLoop) -> bool:
    """Whether it is only `out[i] = torch.logical_or(x[i], x[i + 1])`, which works on all rows at once."""
    statement = found.loop.body[0]
    if len(found.loop.body) > 1 or not isinstance(statement, ast.Assign) or not found.index:
        return False
    target, value = statement.targets[0], statement.value
    if not isinstance(target, ast.Subscript) or code.kind(target.value) not in TENSORS:
        return False
    named = isinstance(target.slice, ast.Name) and target.slice.id == found.index
    if named and _cuts(code, value, found.index):
        return True
    made = isinstance(value, ast.Call) and code.full_name(value.func) in _ELEMENTWISE
    arguments = value.args if isinstance(value, ast.Call) else []
    sources = [argument.value for argument in arguments if isinstance(argument, ast.Subscript)]
    # Otherwise an iteration needs the one before.
    apart = all(ast.unparse(source) != ast.unparse(target.value) for source in sources)
    return (
        named
        and made
        and apart
        and len(sources) + sum(isinstance(argument, ast.Constant) for argument in arguments) == len(arguments)
    )


def _is_type_checked(code: Code, found: ElementLoop) -> bool:
    """Whether it is under `if isinstance(x, tuple)`, where it is a tuple."""
    names = {ast.unparse(array) for array in found.arrays}
    return any(
        isinstance(outer, ast.If)
        and any(
            isinstance(node, ast.Call) and last_name(node.func) == "isinstance" and ast.unparse(node.args[0]) in names
            for node in walk(outer.test)
        )
        for outer in code.ancestors(found.loop)
    )


def _picks_by_mask(code: Code, found: ElementLoop) -> bool:
    """Whether it is `row[mask[i] == 0].max()`: only the device knows how many are picked, so the host always waits."""
    return any(
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Compare) and code.kind(node.value) == TENSOR
        for statement in found.loop.body
        for node in walk(statement)
    )


def _on_device(code: Code, found: ElementLoop) -> bool:
    return all(code.kind(array) == TENSOR for array in found.arrays)
