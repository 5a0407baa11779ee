"""Finds DataLoaders in the source: their settings, and where the one that a loop iterates over is made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.frequency.loops import LoopKind
from hotlap.analysis.frequency.single_evaluations import is_made_once
from hotlap.analysis.parse.facts import Function
from hotlap.analysis.parse.files import is_test
from hotlap.analysis.parse.forwarded_keywords import is_base
from hotlap.analysis.parse.terms import HOST, TENSOR, Term
from hotlap.analysis.parse.torch_names import LOADER_NAMES, TORCH_LOADERS
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import makers
from hotlap.analysis.queries.code import Code, keyword, last_name, spread
from hotlap.analysis.queries.makers import POSITIONS
from hotlap.analysis.queries.mappings import assigned, mapping
from hotlap.analysis.queries.memory import is_in_memory, tensor_dataset
from hotlap.analysis.queries.samples import dotted
from hotlap.analysis.queries.transfers import is_device
from hotlap.records.scan_finding import Confidence, Frequency, Step

_TESTING = frozenset("test testing predict prediction inference infer".split())
_TRYING = frozenset("detect demo export visualize plot embed generate".split())
_VALIDATING = frozenset("val valid validation validate dev eval evaluation".split())

__all__ = ["POSITIONS", "Loader", "assigned", "loader", "loaders", "made_at"]


@dataclass(frozen=True)
class Loader:
    call: ast.Call
    settings: dict[str, ast.expr]
    complete: bool  # no setting is hidden in an unknown **mapping
    direct: bool = True  # torch's own class, called right here

    def constant(self, name: str) -> object:
        """Return the value of a setting if it is a literal, else None."""
        value = self.settings.get(name)
        return value.value if isinstance(value, ast.Constant) else None

    def lacks(self, name: str) -> bool:
        """Return whether a setting is missing, or given as False, None or 0."""
        if name not in self.settings:
            return self.complete
        value = self.settings[name]
        return isinstance(value, ast.Constant) and not value.value

    def workers(self) -> str:
        """Return whether worker processes load the batches: "none", "some" or "unknown"."""
        if "num_workers" not in self.settings:
            return "none" if self.complete else "unknown"
        value = self.settings["num_workers"]
        if isinstance(value, ast.Constant):
            return "some" if value.value else "none"
        return "unknown"


def loaders(code: Code) -> Iterator[Loader]:
    """Yield the loaders that a file makes: with torch's class, a subclass of it, or a function that makes one."""
    for made in _made(code):
        if not is_empty(tensor_dataset(code, made.settings.get("dataset"))):
            yield made


def is_empty(dataset: ast.Call | None) -> bool:
    """Match `TensorDataset(torch.empty(0, 3))` or `TensorDataset(torch.tensor([]))`, which stands for missing data."""
    given = dataset.args if dataset is not None else []
    return bool(given) and all(isinstance(tensor, ast.Call) and _has_no_rows(tensor) for tensor in given)


def _has_no_rows(tensor: ast.Call) -> bool:
    first = tensor.args[0] if tensor.args else None
    if isinstance(first, ast.Tuple | ast.List) and first.elts and last_name(tensor.func) in ("empty", "zeros"):
        first = first.elts[0]
    if last_name(tensor.func) in ("empty", "zeros"):
        return isinstance(first, ast.Constant) and first.value == 0
    return (first is None or (isinstance(first, ast.List) and not first.elts)) and last_name(tensor.func) in (
        "tensor", "Tensor", "FloatTensor", "LongTensor",
    )  # fmt: skip


def _made(code: Code) -> Iterator[Loader]:
    seen = set()
    for call in code.calls(*_names(code)):
        if code.full_name(call.func) in LOADER_NAMES:
            seen.add(call)
            yield loader(code, call)
    for call in code.calls("__init__"):
        if is_base(call.func) and _inherits(code, call) and not _forwards(code, call):
            yield loader(code, call)
    for call, maker in makers.calls(code):
        if call not in seen:
            made = loader(code, call) if maker is None else _made_by(code, call, maker)
            if makers.puts_together(code, call):
                made.settings.pop("dataset", None)
            yield made


def _names(code: Code) -> set[str]:
    """Return the names that the file has for torch's class."""
    own = code.project.files[code.path].names.items()
    return {"DataLoader"} | {
        name for name, term in own if isinstance(term, tuple) and term[0] == "name" and term[1] in LOADER_NAMES
    }


def _forwards(code: Code, call: ast.Call) -> bool:
    """Match `super().__init__(dataset, **options)`, which leaves the other settings to callers of the constructor."""
    function = code.function(call)
    rest = function.args.kwarg.arg if function is not None and function.args.kwarg is not None else ""
    return bool(rest) and any(
        word.arg is None and any(isinstance(node, ast.Name) and node.id == rest for node in walk(word.value))
        for word in call.keywords
    )


def _inherits(code: Code, call: ast.Call) -> bool:
    owner = next((outer for outer in code.ancestors(call) if isinstance(outer, ast.ClassDef)), None)
    return owner is not None and any(code.full_name(base) in LOADER_NAMES for base in owner.bases)


def _made_by(code: Code, call: ast.Call, maker: makers.Maker) -> Loader:
    complete = len(call.args) <= len(maker.parameters) and not any(
        isinstance(argument, ast.Starred) for argument in call.args
    )
    settings = {name: _constant(code, value) for name, value in makers.bound(call, maker).items()}
    for word in call.keywords:
        if word.arg is None:
            entries, whole = mapping(code, call, word.value)
            complete = complete and whole
            settings.update(entries)
    return Loader(call, settings, complete, direct=False)


def loader(code: Code, call: ast.Call) -> Loader:
    settings: dict[str, ast.expr] = {}
    complete = not any(isinstance(argument, ast.Starred) for argument in call.args)
    direct = code.full_name(call.func) in TORCH_LOADERS or is_base(call.func)
    for name, value in zip(POSITIONS if direct else POSITIONS[:3], call.args, strict=False):
        settings[name] = _constant(code, value)
    for word in call.keywords:
        if word.arg is not None:
            settings[word.arg] = _constant(code, word.value)
        else:
            entries, whole = mapping(code, call, word.value)
            complete = complete and whole
            settings.update(entries)
    return Loader(call, settings, complete, direct)


def written_workers(call: ast.Call) -> ast.expr | None:
    """Return the number of workers that the call itself gives, by keyword, unless a mapping may add to the call."""
    return None if spread(call) else keyword(call, "num_workers")


def _constant(code: Code, value: ast.expr) -> ast.expr:
    """Return the constant that a name stands for if the file sets it only once, else the value itself."""
    if not isinstance(value, ast.Name):
        return value
    function = code.function(value)
    if function is not None and value.id in {
        parameter.arg for parameter in (*function.args.args, *function.args.kwonlyargs)
    }:
        return value
    found = assigned(code, value.id)
    if len(found) != 1 or not isinstance(found[0], ast.Constant):
        return value
    elsewhere = function is not None and value.id in code.stored(function) and code.function(found[0]) is not function
    return value if elsewhere else found[0]


def in_memory(code: Code, loader: Loader) -> bool:
    """Return whether the dataset is in memory, so that workers would only copy it."""
    dataset = loader.settings.get("dataset")
    return dataset is not None and is_in_memory(code, dataset)


def on_device(code: Code, loader: Loader) -> bool:
    """Return whether the batches are on the device already, so that there is nothing to pin or copy."""
    made = tensor_dataset(code, loader.settings.get("dataset"))
    if made is not None:
        return any(_is_moved(code, given) for given in made.args)
    dataset, collate = loader.settings.get("dataset"), loader.settings.get("collate_fn")
    if collate is not None:
        targets = code.project.targets(code.asked(collate), code.path)
        return bool(targets) and all(_is_made_there(code.project.function(target)) for target in targets)
    return dataset is not None and _is_kept_there(code, dataset)


def _is_kept_there(code: Code, dataset: ast.expr) -> bool:
    """Match a class of the project that keeps tensors on the device and returns rows of them."""
    found = code.project.class_of(code.project.answer(code.asked(dataset), code.path), code.path)
    method = code.project.method(found[0], found[1], "__getitem__") if found is not None else None
    if method is None:
        return False
    parts = list(_returned(code.project.function(method).returns))
    return all(_is_row(part) and code.project.answer(part, method.path) == TENSOR for part in parts)


def _returned(term: Term) -> Iterator[Term]:
    """Yield the values that a function returns, alone, in a tuple, or on different paths."""
    if isinstance(term, tuple) and term[0] in ("tuple", "join"):
        for part in term[1:]:
            yield from _returned(part)
    else:
        yield term


def _is_row(term: Term) -> bool:
    return isinstance(term, tuple) and term[0] == "index" and isinstance(term[1], tuple) and term[1][0] == "attr"


def _is_made_there(function: Function) -> bool:
    """Match a collate function that makes tensors with `device=…`, and returns them as they are or in an object."""
    given = function.returns
    if isinstance(given, tuple) and given[0] == "call":
        made = [call for call in function.calls if call.callee == given[1]]
        parts = [term for call in made for term in (*call.arguments, *(term for _, term in call.keywords))]
    else:
        parts = list(_returned(given))
    return TENSOR in parts and HOST not in parts


def _is_moved(code: Code, given: ast.expr) -> bool:
    if isinstance(given, ast.Name):
        return any(_is_moved(code, value) for value in assigned(code, given.id) if isinstance(value, ast.Call))
    if not isinstance(given, ast.Call) or last_name(given.func) not in ("to", "cuda"):
        return False
    place = given.args[0] if given.args else keyword(given, "device")
    there = last_name(given.func) == "cuda" or (place is not None and is_device(code, place))
    return there and code.kind(given) == TENSOR


def is_changed_between(code: Code, loader: Loader) -> bool:
    """Match a loop that changes the dataset: `loader.dataset.resample()`. Persistent workers would not see that."""
    statement = code.statement(loader.call)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    dataset = loader.settings.get("dataset")
    places = {f"{ast.unparse(target)}.dataset"} if target is not None else set()
    places |= {ast.unparse(dataset)} if isinstance(dataset, ast.Name | ast.Attribute) else set()
    return any(
        _changes(node, places) and any(code.loops(node)) and _sees(code, node, loader.call)
        for node in code.nodes(ast.Expr, ast.Assign)
    )


def _sees(code: Code, node: ast.AST, call: ast.Call) -> bool:
    """Return whether a node runs after the loader was made and its names mean the same there."""
    function = code.function(call)
    if code.function(node) is function:
        return code.statement(node).lineno > call.lineno
    return function is None or ast.unparse(node).startswith("self.")


def _changes(node: ast.AST, places: set[str]) -> bool:
    """Match the statements `place.method(…)` and `place.attribute = …`."""
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Attribute) and ast.unparse(target.value) in places for target in node.targets)
    call = node.value if isinstance(node, ast.Expr) else None
    function = call.func if isinstance(call, ast.Call) else None
    return isinstance(function, ast.Attribute) and ast.unparse(function.value) in places


def heat(code: Code, loader: Loader) -> Heat:
    """Return the heat of a loader's settings: they are made once and felt at every batch, though not in tests."""
    never = code.heat(loader.call).frequency is Frequency.NEVER
    once = _is_for_one_pass(code, loader) or is_for_test(code, loader)
    confidence = Confidence.LOW if never or once or is_test(code.path) else Confidence.HIGH
    return Heat(
        Frequency.BATCH,
        confidence,
        Side.LOAD,
        (Step(code.path, loader.call.lineno, "every batch comes from this loader"),),
    )


def _is_for_one_pass(code: Code, loader: Loader) -> bool:
    """Match a loader that is made and consumed in a function that predicts, or that tests after the training."""
    known = code.reference(loader.call)
    if known is None or known in code.hotness.functions or known in code.hotness.trainings:
        return False
    loops = code.project.function(known).loops
    kinds = code.hotness.kinds.get(known, [])
    batches = [loop for loop, kind in zip(loops, kinds, strict=True) if kind >= LoopKind.BATCH_LIKELY]
    alone = bool(batches) and not any(loop.trains for loop in batches) and LoopKind.EPOCH not in kinds
    return alone and code.trains() and is_made_once(code.hotness, known)


def is_for_test(code: Code, loader: Loader) -> bool:
    """Match a loader named for testing beside one for validation, unless a loop uses it: it is used once at the end."""
    name = _called(code, loader.call)
    if _VALIDATING & set(_words(name)):
        return False
    if is_of_trial(code, loader.call):
        return True
    if not _TESTING & set(_words(name)):
        return False
    beside = {_called(code, call) for call in code.calls(*_names(code))} | {
        function.name for function in code.nodes(ast.FunctionDef) if isinstance(function, ast.FunctionDef)
    }
    return any(_VALIDATING & set(_words(neighbour)) for neighbour in beside) and not _is_gone_through_again(code, name)


def is_of_trial(code: Code, node: ast.AST) -> bool:
    """Match code in test.py or predict.py of a project that trains elsewhere, unless a training calls it."""
    named = (_TESTING | _TRYING) & set(_words(PurePath(code.path).stem))
    if not named or not code.trains() or code.heat(node).frequency.rank >= Frequency.EPOCH.rank:
        return False
    functions = code.project.files[code.path].functions.values()
    return not any(function.builds or any(loop.trains for loop in function.loops) for function in functions)


def _words(name: str) -> list[str]:
    return name.lower().strip("_").split("_")


def _called(code: Code, call: ast.Call) -> str:
    """Return the name that a loader is given, else that of the function that makes it."""
    statement = code.statement(call)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name | ast.Attribute):
        name = last_name(statement.targets[0])
        if len(_words(name)) > 1:
            return name
        if isinstance(statement.targets[0], ast.Attribute) and dotted(statement.targets[0].value) not in ("", "self"):
            return last_name(statement.targets[0].value)  # test_set.loader
    given = call.args[0] if call.args else keyword(call, "dataset")
    if not isinstance(statement, ast.Assign) and isinstance(given, ast.Name) and len(_words(given.id)) > 1:
        return given.id  # return DataLoader(train_set), DataLoader(test_set)
    function = code.function(call)
    return function.name if function is not None else ""


def _is_gone_through_again(code: Code, name: str) -> bool:
    """Return whether the loader is named in a loop: `for epoch in …: test(model, test_loader)`."""
    return any(
        name in (getattr(node, "id", ""), getattr(node, "attr", "")) and _is_read_again(code, node)
        for node in code.nodes(ast.Name, ast.Attribute)
    )


def _is_read_again(code: Code, node: ast.AST) -> bool:
    around = [loop for loop in code.loops(node) if not isinstance(loop, ast.For) or node not in walk(loop.iter)]
    return bool(around) and isinstance(getattr(node, "ctx", None), ast.Load)


def made_at(code: Code, iterable: ast.expr) -> ast.Call | None:
    """Return the DataLoader(…) that a loop iterates over, if it is made in the same file."""
    while isinstance(iterable, ast.Call):
        if code.full_name(iterable.func) in TORCH_LOADERS:
            return iterable
        if not iterable.args:
            return None
        iterable = iterable.args[0]
    if not isinstance(iterable, ast.Name):
        return None
    made = assigned(code, iterable.id)
    calls = [call for call in made if isinstance(call, ast.Call) and code.full_name(call.func) in TORCH_LOADERS]
    return calls[0] if len(calls) == 1 == len(made) else None
