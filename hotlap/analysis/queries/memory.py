"""Recognizes datasets in memory: a sample is a row of data read before, and workers would only copy it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse.facts import Call
from hotlap.analysis.parse.terms import DATASET, FRAME, HOST, NUMPY, TENSOR, TENSOR_DATASET, Term
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.samples import dotted, set_to

_DEEPEST = 3  # functions and aliases to follow
_PARTS = frozenset("random_split Subset ConcatDataset train_test_split".split())  # of the datasets passed to them
_PLAIN = frozenset(
    "len int float str list tuple dict set range zip enumerate isinstance min max sum slice sorted bool abs round "
    "getattr hasattr super type".split()
)
_LIGHT = frozenset(
    "float long int double half bool astype copy clone view reshape unsqueeze squeeze permute transpose contiguous "
    "numpy tolist items keys values get append extend lower strip split index size dim type item is_tensor detach "
    "flatten __len__ __getitem__ T repeat expand sum mean".split()
)
_READING = (
    "numpy.load",
    "numpy.memmap",
    "numpy.genfromtxt",
    "numpy.fromfile",
    "numpy.loadtxt",
    "torch.load",
    "torch.hub",
    "torch.nn",
)
_COMPUTING = ("torch.", "numpy.", "random.", "copy.", "math.")
# These read a file whenever they are indexed, or transform what they read.
_STORED = ("h5py", "zarr", "lmdb", "numpy.memmap", "tables.", "datasets.", "torchvision.", "torchaudio.")


def is_in_memory(code: Code, dataset: ast.expr, deep: int = 0) -> bool:
    """Match a TensorDataset, an array, a list, or a class of the project that returns rows of what it holds."""
    if code.kind(dataset) in (NUMPY, TENSOR, HOST, TENSOR_DATASET) or tensor_dataset(code, dataset) is not None:
        return True
    if _is_list(dataset) or _is_table(code, dataset):
        return True
    found = list(_origins(code, dataset)) if deep < _DEEPEST else []
    return bool(found) and all(is_in_memory(code, origin, deep + 1) for origin in found)


def tensor_dataset(code: Code, dataset: ast.expr | None) -> ast.Call | None:
    if isinstance(dataset, ast.Name) and not _is_argument(code, dataset):
        made = set_to(code, dataset)
        dataset = made[-1] if made else dataset
    return dataset if isinstance(dataset, ast.Call) and last_name(dataset.func) == "TensorDataset" else None


def _is_list(value: ast.expr) -> bool:
    """Match `list(zip(features, labels))`."""
    called = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("list", "zip")
    return called or isinstance(value, ast.List | ast.ListComp)


def _origins(code: Code, dataset: ast.expr) -> Iterator[ast.expr]:
    """Yield the expressions that a dataset comes from: assignments, the whole of a part, returns of functions."""
    if isinstance(dataset, ast.Name) and _is_argument(code, dataset):
        return
    if isinstance(dataset, ast.Name | ast.Attribute):
        taken = list(_unpacked(code, dotted(dataset)))
        near = [value for value in taken if code.function(value) is code.function(dataset)]
        made = [value for value in set_to(code, dataset) if not _is_none(value)]
        yield from near or [*made, *taken]
    elif isinstance(dataset, ast.Call) and last_name(dataset.func) in _PARTS and dataset.args:
        first = dataset.args[0]
        yield from first.elts if isinstance(first, ast.List | ast.Tuple) else (first,)
    elif isinstance(dataset, ast.Call) and isinstance(dataset.func, ast.Name | ast.Attribute):
        yield from returned_by(code, dataset)


def _is_argument(code: Code, name: ast.Name) -> bool:
    function = code.function(name)
    every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs) if function is not None else ()
    return any(parameter.arg == name.id for parameter in every)


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _unpacked(code: Code, name: str) -> Iterator[ast.expr]:
    """Yield the value of `self.train, self.val = random_split(dataset, …)`."""
    for node in code.nodes(ast.Assign):
        assert isinstance(node, ast.Assign)
        targets = [part for target in node.targets if isinstance(target, ast.Tuple) for part in target.elts]
        if name and any(dotted(part) == name for part in targets):
            yield node.value


def returned_by(code: Code, call: ast.Call) -> Iterator[ast.expr]:
    """Yield all that a function of the same file may return."""
    targets = code.project.targets(code.asked(call.func), code.path)
    lines = {code.project.function(target).line for target in targets if target.path == code.path}
    for node in code.nodes(ast.FunctionDef):
        assert isinstance(node, ast.FunctionDef)
        if node.lineno in lines and len(lines) == len(targets):
            yield from (
                statement.value
                for statement in walk(node)
                if isinstance(statement, ast.Return) and statement.value is not None
            )


def _is_table(code: Code, dataset: ast.expr) -> bool:
    """Match a class of the project whose samples cost a few operations on what it holds; not rows of a frame."""
    found = code.project.class_of(code.project.answer(code.asked(dataset), code.path), code.path)
    method = code.project.method(found[0], found[1], "__getitem__") if found is not None else None
    if found is None or method is None:
        return False
    used = _used(code, method)
    held = [
        (where, term)
        for where, ancestor in code.project.lineage(*found)
        for name, term in ancestor.attributes.items()
        if not used or name in used
    ]
    if any(_is_stored(term) or not _is_held(code.project, code.project.answer(term, where)) for where, term in held):
        return False
    return _is_light(code.project, method)


def makes_samples(code: Code, dataset: ast.expr | None, *by: str) -> bool:
    """Match a class of the project that makes samples; if functions are named, one that calls any of them to do so."""
    term = code.project.answer(code.asked(dataset), code.path) if dataset is not None else ""
    found = code.project.class_of(term, code.path)
    method = code.project.method(found[0], found[1], "__getitem__") if found is not None else None
    if method is None:
        return False
    return not by or any(call.callee in [("name", name) for name in by] for call in code.project.function(method).calls)


def _used(code: Code, method: Reference) -> set[str]:
    """Return the attributes that a method takes its sample from; none if it calls other methods of `self`."""
    line = code.project.function(method).line if method.path == code.path else -1
    node = next((function for function in code.nodes(ast.FunctionDef) if function.lineno == line), None)  # type: ignore[attr-defined]
    inside = list(walk(node)) if node is not None else []
    if any(isinstance(part, ast.Call) and dotted(part.func).startswith("self.") for part in inside):
        return set()
    return {dotted(part)[5:] for part in inside if isinstance(part, ast.Attribute) and dotted(part).startswith("self.")}


def _is_held(project: Project, term: Term) -> bool:
    """Return whether an attribute holds plain data: not a frame, nor a dataset whose samples have a cost of their
    own."""
    if isinstance(term, tuple) and term[0] == "instance":
        owner = project.files[term[1]].classes[term[2]]
        method = project.method(term[1], owner, "__getitem__")
        return method is None or _is_light(project, method)
    return term not in (FRAME, DATASET, TENSOR_DATASET)


def _is_light(project: Project, reference: Reference, deep: int = 0) -> bool:
    function = project.function(reference)
    if deep > _DEEPEST or any(not loop.comprehension for loop in function.loops) or _takes_rows(function.returns):
        return False
    return all(_is_cheap(project, call, reference.path, deep) for call in function.calls)


def _is_cheap(project: Project, call: Call, origin: str, deep: int) -> bool:
    callee = call.callee
    if isinstance(callee, str):
        return callee in (TENSOR, HOST, NUMPY)
    if callee[0] == "name" and not str(callee[1]).startswith("@"):
        name = str(callee[1])
        return name in _PLAIN or (name.startswith(_COMPUTING) and not name.startswith(_READING))
    targets = project.targets(callee, origin)
    if targets:
        return all(_is_light(project, target, deep + 1) for target in targets)
    return callee[0] == "attr" and callee[2] in _LIGHT


def _takes_rows(term: Term) -> bool:
    """Match `self.frame.iloc[i]`, which costs much more than a row of an array."""
    if not isinstance(term, tuple):
        return False
    return (term[0] == "attr" and term[2] in ("iloc", "loc", "at", "iat")) or any(map(_takes_rows, term[1:]))


def _is_stored(term: Term) -> bool:
    if isinstance(term, tuple) and term[0] == "name":
        return str(term[1]).startswith(_STORED)
    return isinstance(term, tuple) and any(map(_is_stored, term[1:]))
