"""Finds in-memory datasets whose rows are fetched one at a time and stacked again."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.parse.terms import HOST, NUMPY, TENSOR, TENSORS, Term
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Definition, last_name
from hotlap.analysis.queries.loaders import Loader, is_empty, is_for_test, loaders
from hotlap.analysis.queries.memory import returned_by
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import mentions, per_sample, set_to
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Confidence, Frequency, Step

WORDS = ("TensorDataset", "__getitem__", "DataLoader(")
TESTS = False
_REPAIR = (
    "fetch whole batches: index the tensors with all row numbers of a batch (BatchSampler as sampler, batch_size=None)"
)
_MAKERS = frozenset(
    f"torch.{name}"
    for name in "tensor as_tensor from_numpy FloatTensor LongTensor Tensor DoubleTensor IntTensor".split()
)
_CASTS = frozenset("float long int double half to bool astype copy type".split())


def find(code: Code) -> Iterator[Found]:
    yield from _tensor_datasets(code)
    yield from _classes(code)


# DataLoader(TensorDataset(…))


def _tensor_datasets(code: Code) -> Iterator[Found]:
    linked = set()
    for loader in loaders(code):
        made = _tensor_dataset(code, loader.settings.get("dataset"))
        if made is not None:
            linked.add(made)
        if (made is not None or _is_tensor(code, loader)) and _collates_items(loader):
            yield _found(
                loader.call,
                "splits tensors into items and stacks them again",
                code.heat(loader.call).frequency,
                code,
                Confidence.LOW if _is_aside(code, loader) else None,
            )
    for call in code.calls("TensorDataset"):
        from_torch = code.full_name(call.func).startswith("torch.utils.data.") and call not in linked
        from_torch = from_torch and not is_empty(call)
        if from_torch and _is_returned(code, call) and _project_loads(code):
            yield _found(
                call,
                "is split into items by its loader, which stacks them again",
                code.heat(call).frequency,
                code,
                Confidence.MEDIUM,
            )


def _is_tensor(code: Code, loader: Loader) -> bool:
    """Match `DataLoader(torch.from_numpy(table).to(device))`: the rows of a tensor without a dataset around it."""
    data = loader.settings.get("dataset")
    values = set_to(code, data) if isinstance(data, ast.Name | ast.Attribute) else [data] if data is not None else []
    here = code.function(loader.call)
    before = [value for value in values if code.function(value) is here and value.lineno <= loader.call.lineno]
    last = max(before, key=lambda value: value.lineno, default=None)
    return last is not None and isinstance(last, ast.Call) and code.kind(last) in (TENSOR, HOST)


def _is_aside(code: Code, loader: Loader) -> bool:
    """Return whether workers make the batches in parallel with the training, or the loader is only for testing."""
    return loader.workers() == "some" or is_for_test(code, loader)


def _found(node: ast.expr, does: str, often: Frequency, code: Code, confidence: Confidence | None = None) -> Found:
    sure = Confidence.LOW if often is Frequency.NEVER else Confidence.HIGH
    heat = Heat(Frequency.SAMPLE, sure, Side.LOAD, (Step(code.path, node.lineno, "every sample comes from here"),))
    return Found(node, f"`{shown(node)}` {does}", _REPAIR, heat=heat, confidence=confidence)


def _collates_items(loader: Loader) -> bool:
    """Return whether torch makes batches item by item, with its default collate_fn."""
    if "collate_fn" in loader.settings and not loader.lacks("collate_fn"):
        return False
    sampler = loader.settings.get("sampler")
    whole = isinstance(sampler, ast.Call) and last_name(sampler.func) == "BatchSampler"
    return loader.complete and not whole and not _is_none(loader.settings.get("batch_size"))


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _tensor_dataset(code: Code, node: ast.expr | None, deep: int = 0) -> ast.Call | None:
    """Return the TensorDataset(…) given to the loader, through names, splits and subsets."""
    if node is None or deep > 4:
        return None
    if isinstance(node, ast.Call):
        if code.full_name(node.func) in ("torch.utils.data.TensorDataset", "torch.utils.data.dataset.TensorDataset"):
            return node
        through = code.full_name(node.func) in ("torch.utils.data.Subset", "torch.utils.data.random_split")
        if through and node.args:
            return _tensor_dataset(code, node.args[0], deep + 1)
        made = [_tensor_dataset(code, value, deep + 1) for value in returned_by(code, node)]
        return made[0] if made and all(dataset is not None for dataset in made) else None
    for value in (*set_to(code, node), *_unpacked(code, node)):
        found = _tensor_dataset(code, value, deep + 1)
        if found is not None:
            return found
    return None


def _unpacked(code: Code, node: ast.expr) -> Iterator[ast.expr]:
    """Yield the values of `train, valid = random_split(data, …)`."""
    if not isinstance(node, ast.Name):
        return
    for assignment in code.nodes(ast.Assign):
        assert isinstance(assignment, ast.Assign)
        target = assignment.targets[0]
        if isinstance(target, ast.Tuple) and any(
            isinstance(element, ast.Name) and element.id == node.id for element in target.elts
        ):
            yield assignment.value


def _is_returned(code: Code, call: ast.Call) -> bool:
    """Return whether the dataset is returned, so that the loader is made elsewhere."""
    parent = code.parent(call)
    if isinstance(parent, ast.Tuple):
        parent = code.parent(parent)
    return isinstance(parent, ast.Return)


def _project_loads(code: Code) -> bool:
    return any(
        isinstance(term, tuple) and term[0] == "name" and str(term[1]).endswith("utils.data.DataLoader")
        for summary in code.project.files.values()
        for term in summary.names.values()
    )


# Classes written like TensorDataset


def _classes(code: Code) -> Iterator[Found]:
    for function in code.nodes(ast.FunctionDef):
        assert isinstance(function, ast.FunctionDef)
        if function.name != "__getitem__" or len(function.args.args) != 2 or not per_sample(code, function.body[-1]):
            continue
        if _has_getitems(code, function) or not _is_default_collated(code):
            continue
        returned = _returned(function.body, {})
        found = [_rows(code, function, value, names) for value, names in returned or ()]
        if found and all(confidence is not None for confidence in found):
            yield Found(
                returned[0][0],
                f"`{shown(returned[0][0])}` is fetched sample by sample and stacked again",
                _REPAIR + ", or define __getitems__",
                confidence=min(
                    (confidence for confidence in found if confidence is not None),
                    key=lambda confidence: confidence.rank,
                ),
            )


def _has_getitems(code: Code, function: Definition) -> bool:
    owner = code.parent(function)
    names = {getattr(statement, "name", "") for statement in owner.body} if isinstance(owner, ast.ClassDef) else set()
    return "__getitems__" in names or any("collate" in name for name in names)


def _is_default_collated(code: Code) -> bool:
    """Return whether no loader of the file has a collate_fn, which ragged rows would need."""
    return not any("collate_fn" in loader.settings and not loader.lacks("collate_fn") for loader in loaders(code))


Names = dict[str, ast.expr]


def _returned(body: list[ast.stmt], names: Names) -> list[tuple[ast.expr, Names]]:
    """Return the values that the statements return, each with the names set before; nothing if they do more."""
    names = dict(names)
    found: list[tuple[ast.expr, Names]] = []
    for statement in body:
        if isinstance(statement, ast.Return) and statement.value is not None:
            return [*found, (statement.value, names)]
        if isinstance(statement, ast.If) and not any(isinstance(node, ast.Call) for node in walk(statement.test)):
            inside = _returned(statement.body, names)
            if not inside:
                return []
            found += inside
            if statement.orelse:
                otherwise = _returned(statement.orelse, names)
                return [*found, *otherwise] if otherwise else []
        elif not _sets(statement, names):
            return []
    return []


def _sets(statement: ast.stmt, names: Names) -> bool:
    """Record a plain assignment in the names; return False for any other statement but a docstring."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = list(zip(target.elts, value.elts, strict=True))
    else:
        pairs = [(target, value)]
    for name, given in pairs:
        if not isinstance(name, ast.Name):
            return False
        names[name.id] = _put(given, names)
    return True


def _put(node: Any, names: Names) -> Any:
    """Return the node with known names replaced by their values, as for `x = x.float()`."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node)
    if isinstance(node, list):
        return [_put(item, names) for item in node]
    if not isinstance(node, ast.AST) or not mentions(node, set(names)):
        return node
    made = copy.copy(node)
    for field, value in ast.iter_fields(node):
        setattr(made, field, _put(value, names))
    return made


def _rows(code: Code, function: Definition, value: ast.expr, names: Names) -> Confidence | None:
    """Return how sure it is that the value consists of rows of in-memory data; None if it is more than that."""
    index = function.args.args[1].arg
    found = [_row(code, part, index, names) for part in _parts(value, names)]
    if not found or any(confidence is None for confidence in found):
        return None
    return Confidence.HIGH if all(confidence is Confidence.HIGH for confidence in found) else _best(found)


def _best(found: list[Confidence | None]) -> Confidence | None:
    """Return medium confidence if any part is likely a tensor: it vouches for the others."""
    return (
        Confidence.MEDIUM if any(confidence in (Confidence.HIGH, Confidence.MEDIUM) for confidence in found) else None
    )


def _parts(value: ast.expr, names: Names) -> list[ast.expr]:
    if isinstance(value, ast.Tuple | ast.List):
        return [part for element in value.elts for part in _parts(element, names)]
    if isinstance(value, ast.Dict):
        return [part for element in value.values for part in _parts(element, names)]
    if isinstance(value, ast.Name) and value.id in names:
        return _parts(names[value.id], names)
    if isinstance(value, ast.DictComp | ast.ListComp):
        return [_indexed_table(value)]
    return [value]


def _indexed_table(node: ast.DictComp | ast.ListComp) -> ast.expr:
    """Return `self.table[index]` for `{name: column[index] for name, column in self.table.items()}`."""
    picked = node.value if isinstance(node, ast.DictComp) else node.elt
    generator, over = node.generators[0], node.generators[0].iter
    if (
        isinstance(over, ast.Call)
        and last_name(over.func) in ("items", "values")
        and isinstance(over.func, ast.Attribute)
    ):
        over = over.func.value
    given = (
        generator.target.elts[-1]
        if isinstance(generator.target, ast.Tuple) and generator.target.elts
        else generator.target
    )
    same = isinstance(picked, ast.Subscript) and ast.dump(picked.value).replace("Load", "Store") == ast.dump(given)
    if not same or len(node.generators) > 1 or generator.ifs or not isinstance(picked, ast.Subscript):
        return node
    made = ast.Subscript(over, picked.slice, ast.Load())
    return ast.copy_location(made, node)


def _row(code: Code, node: ast.expr, index: str, names: Names) -> Confidence | None:
    made = False
    while isinstance(node, ast.Call):
        if code.full_name(node.func) in _MAKERS and node.args:
            node, made = node.args[0], True
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _CASTS:
            node = node.func.value
        else:
            return None
        if isinstance(node, ast.Name) and node.id in names:
            node = names[node.id]
    if isinstance(node, ast.Name):
        return Confidence.LOW if node.id == index else None
    if not isinstance(node, ast.Subscript) or not _is_own(node.value):
        return None
    if not _is_number(_put(node.slice, names), index):
        return None
    return _of_memory(code, node.value, made or isinstance(node.slice, ast.Tuple))


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _is_number(node: ast.expr, index: str) -> bool:
    """Match the index itself, or a slice that starts at it (a window)."""
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and _is_number(node.elts[0], index)
    if isinstance(node, ast.Slice):
        return any(isinstance(descendant, ast.Name) and descendant.id == index for descendant in walk(node))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return _is_number(node.left, index)
    return isinstance(node, ast.Name) and node.id == index


def _of_memory(code: Code, node: ast.expr, made: bool) -> Confidence | None:
    """Return how sure it is that an attribute is an in-memory tensor or array, not one mapped or read lazily."""
    texts = [ast.unparse(value) for value in (*set_to(code, node), *_roots(code, node))]
    if any(word in text for text in texts for word in ("memmap", "mmap", "h5py", "zarr", "load_dataset", "open(")):
        return None
    kinds = _kinds(code.term(node))
    if not kinds and any(_is_array(value) for value in set_to(code, node)):
        kinds = {NUMPY}
    kinds = kinds or {kind for value in set_to(code, node) for kind in _applied(code, value)}
    if kinds & {HOST, TENSOR, *TENSORS} or (NUMPY in kinds and made):
        return Confidence.HIGH
    return Confidence.MEDIUM if NUMPY in kinds or (made and not kinds) else Confidence.LOW if not kinds else None


def _roots(code: Code, node: ast.expr) -> Iterator[ast.expr]:
    """Yield the values of the names it is made of, such as the file of `file.get("x")`."""
    for value in set_to(code, node):
        for name in walk(value):
            if isinstance(name, ast.Name):
                yield from set_to(code, name)


def _is_array(node: ast.expr) -> bool:
    """Match `frame.values`, `frame.to_numpy()`, and calls of methods on them."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "to_numpy":
            return True
        node = node.func.value
    return isinstance(node, ast.Attribute) and node.attr == "values"


def _applied(code: Code, node: ast.expr) -> set[str]:
    """Return the kinds of `column.apply(function).tolist()`: those of what the function returns."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "apply" and node.args:
            return _kinds(code.project.answer(("call", code.term(node.args[0])), code.path))
        if node.func.attr not in ("tolist", "to_list", "to_numpy"):
            return set()
        node = node.func.value
    return set()


def _kinds(term: Term) -> set[str]:
    if isinstance(term, str):
        return {term} if term else set()
    if term[0] in ("list", "join", "tuple", "dict"):
        return set().union(*(_kinds(member) for member in term[1:]))
    return {"other"}
