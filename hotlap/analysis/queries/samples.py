"""Follows the data: what runs for every sample, what is prepared in advance, and what is cached once made."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache

from hotlap.analysis.frequency.heat import Side
from hotlap.analysis.frequency.hotness import Hotness
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.parse.facts import Summary
from hotlap.analysis.parse.files import is_test
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Definition, Repeated, last_name
from hotlap.records.scan_finding import Frequency

_MEMOS = frozenset("cache lru_cache cached memoize memoized cached_property".split())
_TESTED = frozenset("Test Testing Inference Infer Predict Prediction".split())
_IN_MEMORY = frozenset("ram memory lazy inmemory".split())  # such words can only make a place colder
_SHOWS = frozenset(
    "print info debug warning write writelines writerow plot scatter annotate text barh bar hist imshow axvline "
    "axhline savefig figure title add_scalar log show legend echo remove unlink copy2 copyfile move makedirs "
    "mkdir".split()
)


def per_sample(code: Code, node: ast.AST) -> bool:
    """Return whether a node runs for every sample, or for every batch that is assembled."""
    heat = code.heat(node)
    return heat.hot and (heat.side is Side.LOAD or any(step.text.endswith("loads a sample") for step in heat.why))


def prepares(code: Code, node: ast.AST) -> bool:
    """Return whether a node prepares the data of a training; tests and files apart from any training do not count."""
    if code.heat(node).frequency is Frequency.NEVER or is_test(code.path):
        return False
    if not code.trains() and not any(is_of_training(code, path) for path in code.project.files):
        return "TensorDataset" in code.text
    return _makes_tensors(code, node) or any(is_of_training(code, path) for path in _callers(code, node))


def _makes_tensors(code: Code, node: ast.AST) -> bool:
    """Return whether the function around a node passes data to torch."""
    scope = code.function(node)
    return scope is not None and any(
        isinstance(part, ast.Call) and code.full_name(part.func).startswith("torch.") for part in walk(scope)
    )


def is_of_training(code: Code, path: str) -> bool:
    """Return whether a file trains, defines a dataset or makes a loader."""
    return path in _files_of_training(code.hotness)


@lru_cache(maxsize=2)
def _files_of_training(hotness: Hotness) -> frozenset[str]:
    return frozenset(path for path, summary in hotness.project.files.items() if hotness.is_hot(path) or _loads(summary))


def _loads(summary: Summary) -> bool:
    if any(name.endswith(("Dataset", "DataModule")) for owner in summary.classes.values() for name in owner.base_names):
        return True
    return any(
        isinstance(call.callee, tuple) and call.callee[0] == "name" and str(call.callee[1]).endswith("DataLoader")
        for function in summary.functions.values()
        for call in function.calls
    )


def _callers(code: Code, node: ast.AST) -> Iterator[str]:
    """Yield the files from which a node is reached, its own first."""
    yield code.path
    function = code._reader_function(node)
    waiting = [Reference(code.path, function.name)] if function is not None else []
    seen = set(waiting)
    while waiting and len(seen) < 200:
        for caller, _ in code.hotness.callers.get(waiting.pop(), ()):
            if caller not in seen:
                seen.add(caller)
                waiting.append(caller)
                yield caller.path


def is_for_test(code: Code, node: ast.AST) -> bool:
    """Match code in a dataset named for testing beside other datasets: it is used after the training."""
    owner = next((outer for outer in code.ancestors(node) if isinstance(outer, ast.ClassDef)), None)
    if owner is None or not _names_test(owner):
        return False
    return any(
        isinstance(sibling, ast.ClassDef) and not _names_test(sibling) and _gives_samples(sibling)
        for sibling in code.nodes(ast.ClassDef)
    )


def _names_test(owner: ast.ClassDef) -> bool:
    return bool(_TESTED & set(re.findall(r"[A-Z][a-z]+", owner.name)))


def _gives_samples(owner: ast.ClassDef) -> bool:
    return any(isinstance(statement, ast.FunctionDef) and statement.name == "__getitem__" for statement in owner.body)


def loops(code: Code, node: ast.AST) -> Iterator[Repeated]:
    """Yield the loops that run a node in every iteration, but not those whose iterable it is part of."""
    inner = node
    for outer in code.ancestors(node):
        if isinstance(outer, Definition | ast.Lambda):
            return
        if isinstance(outer, Repeated) and inner in outer.body:
            yield outer
        inner = outer


# Values that are made once and cached


def is_kept(code: Code, node: ast.AST) -> bool:
    """Return whether a value is made once per key: the function is memoized, or looks the value up before making it."""
    function = code.function(node)
    if function is None:
        return False
    if any(last_name(_undecorated(decorator)) in _MEMOS for decorator in function.decorator_list):
        return True
    own = _becomes_own(code, node) and not _is_made_anew(code, node)
    if function.name != "__getitem__" and (own or "cache" in function.name.lower()):
        return True
    if isinstance(node, ast.Call) and any(_asks_memory(argument) for argument in node.args[:1]):
        return True  # was cached on disk
    if function.name not in ("__init__", "setup") and any(_is_filed(part) for part in walk(function)):
        return True
    return any(
        isinstance(outer, ast.If | ast.IfExp) and (_asks_memory(outer.test) or _was_looked_up(function, outer.test))
        for outer in code.ancestors(node)
    )


def _becomes_own(code: Code, node: ast.AST) -> bool:
    """Match `self.file = open(path)` in a helper."""
    parent = code.parent(node)
    return isinstance(parent, ast.Assign) and any(dotted(target).startswith("self.") for target in parent.targets)


def _is_made_anew(code: Code, node: ast.AST) -> bool:
    """Return whether the object that holds the value is itself made for every sample."""
    return any(step.text == "calls __init__" for step in code.heat(node).why)


def _undecorated(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


def _is_filed(node: ast.AST) -> bool:
    """Match `self.samples[index] = …`."""
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Attribute)
        and isinstance(node.value.value, ast.Name)
        and node.value.value.id in ("self", "cls")
    )


def _was_looked_up(function: Definition, test: ast.expr) -> bool:
    """Match `image = self.images[i]`, then `if image is None`."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Is) or not isinstance(test.left, ast.Name):
        return False
    name = test.left.id
    return any(
        isinstance(part, ast.Subscript) and dotted(part.value).startswith("self.")
        for targets, value in _all_bindings(function)
        if mentions(targets, {name})
        for part in walk(value)
    )


def _all_bindings(function: Definition) -> Iterator[tuple[ast.AST, ast.AST]]:
    for node in walk(function):
        yield from _bindings(node)


def _asks_memory(test: ast.expr) -> bool:
    names = [last_name(part) for part in walk(test) if isinstance(part, ast.Name | ast.Attribute)]
    words = {word for name in names for word in name.lower().split("_")}
    return bool(words & _IN_MEMORY) or any(word.startswith(("cach", "preload")) for word in words)


# Dependencies


def dependents(function: Definition, roots: set[str] | None = None) -> set[str]:
    """Return the names in a function that depend on its arguments, except `self`, or on the given names."""
    every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    found = {parameter.arg for parameter in every} - {"self", "cls"} if roots is None else set(roots)
    for _ in range(3):
        before = len(found)
        for targets, values in _bound(function):
            if not values.isdisjoint(found):
                found |= targets
        if len(found) == before:
            break
    return found


@lru_cache(maxsize=64)
def _bound(function: Definition) -> list[tuple[set[str], set[str]]]:
    """Return the names that are set together in a function, and those that they are set from."""
    return [
        (_mentioned(targets) - {"self", "cls"}, _mentioned(value))
        for node in walk(function)
        for targets, value in _bindings(node)
    ]


def _mentioned(node: ast.AST) -> set[str]:
    return {part.id for part in walk(node) if isinstance(part, ast.Name)}


def _bindings(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if not isinstance(target, ast.Attribute):
                yield target, node.value
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield node.target, node.iter
    elif isinstance(node, ast.With):
        for item in node.items:
            if item.optional_vars is not None:
                yield item.optional_vars, item.context_expr


def mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in walk(node))


def set_to(code: Code, node: ast.expr) -> list[ast.expr]:
    """Return all values that a name gets in its function, else in the file, or that an attribute such as `self.x` gets
    in its class, else in any class of the file."""
    if not isinstance(node, ast.Attribute | ast.Name):
        return []
    name, every = dotted(node), _assignments(code)
    if not name:  # part of something that has no name
        return []
    scope = _class_of(code, node) if name.startswith("self.") else _function_of(code, node)
    return every.get(f"{scope}:{name}", []) or every.get(name, [])


def _class_of(code: Code, node: ast.AST) -> str:
    return next(
        (f"{outer.name}@{outer.lineno}" for outer in code.ancestors(node) if isinstance(outer, ast.ClassDef)), ""
    )


def _function_of(code: Code, node: ast.AST) -> str:
    known = code.reference(node)
    return known.name if known is not None else ""


@lru_cache(maxsize=2)
def _assignments(code: Code) -> Mapping[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in code.nodes(ast.Assign, ast.AnnAssign):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                name = dotted(target)
                found[name].append(node.value)
                scope = _class_of(code, node) if name.startswith("self.") else _function_of(code, node)
                found[f"{scope}:{name}"].append(node.value)
    return found


def dotted(node: ast.expr) -> str:
    """Return a dotted name such as `self.a.b` as text, or "" for anything else."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""


# Uses


def only_shows(body: list[ast.stmt]) -> bool:
    """Return whether the statements only print, draw or write, and store nothing."""
    calls = [call for statement in body for call in walk(statement) if isinstance(call, ast.Call)]
    shows = any(last_name(call.func) in _SHOWS for call in calls)
    gathers = any(last_name(call.func) in ("append", "extend", "add") for call in calls)
    stores = any(
        isinstance(node, ast.AugAssign | ast.Yield)
        or (isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store))
        for statement in body
        for node in walk(statement)
    )
    return shows and not gathers and not stores
