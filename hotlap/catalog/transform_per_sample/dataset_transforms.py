"""Modules that compute the same result for a sample in every epoch, and transforms of them passed to a dataset."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.parse.files import is_test
from hotlap.analysis.parse.terms import DATASET, LOADERS, UNKNOWN, Term
from hotlap.analysis.parse.torch_names import LOADER_NAMES
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.loaders import is_of_trial
from hotlap.analysis.queries.memory import returned_by
from hotlap.analysis.queries.receivers import taking
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import set_to
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Confidence, Frequency, Step

_COSTLY_MODULES = (
    "torchaudio.transforms.",
    "torchvision.transforms.Resize",
    "torchvision.transforms.v2.Resize",
    "albumentations.Resize",
    "albumentations.LongestMaxSize",
    "albumentations.SmallestMaxSize",
)
_COSTLY_NAMES = frozenset(name.rsplit(".", 1)[1] for name in _COSTLY_MODULES if not name.endswith(".")) | frozenset(
    "MelSpectrogram Spectrogram MFCC Resample AmplitudeToDB".split()
)
_RANDOM = ("Mask", "Stretch", "AddNoise", "Vol", "Fade", "Random", "Jitter", "Augment", "Erasing")
_DETERMINISTIC = ("Resize", "Size", "Normalize", "ToTensorV2", "PadIfNeeded", "CenterCrop", "ToFloat", "ToGray")
_DEEPEST = 3  # names of names
_COMPOSED = ("Sequential", "Compose")
_STORED = ("torchvision.datasets.", "torchaudio.datasets.")


def repeated(code: Code, node: ast.expr) -> ast.Call | None:
    """Return the costly module that a transform begins with; everything up to it is the same in every epoch."""
    for module in _parts(node):
        name = code.full_name(module.func)
        if any(word in name for word in _RANDOM) or _may_be_random(name):
            return None  # what follows differs from epoch to epoch
        if name.startswith(_COSTLY_MODULES):
            return module
    return None


def is_random(transform: ast.AST) -> bool:
    """Tell whether any part of a transform draws random numbers, which decide how much can be kept."""
    calls = [node for node in walk(transform) if isinstance(node, ast.Call)]
    return any(word in last_name(call.func) for call in calls for word in _RANDOM)


def only_resizes(code: Code, transform: ast.expr) -> bool:
    """Tell whether all that could be kept of a transform with chance in it is a smaller picture, not a spectrogram."""
    costly = repeated(code, transform)
    return costly is not None and last_name(costly.func).endswith(("Resize", "Size")) and is_random(transform)


def _parts(node: ast.expr) -> list[ast.Call]:
    """Return the modules of a Sequential or a Compose, or the module itself."""
    if isinstance(node, ast.List) or (isinstance(node, ast.Call) and last_name(node.func) in _COMPOSED):
        return [call for call in walk(node) if isinstance(call, ast.Call) and call is not node]
    return [node] if isinstance(node, ast.Call) else []


def origins(code: Code, node: ast.expr, deep: int = 0) -> list[ast.expr]:
    """Return what a name is set to, through `given or DEFAULT`, a conditional, another name or a composed list."""
    found: list[ast.expr] = []
    for value in set_to(code, node) if deep < _DEEPEST else ():
        choices = value.values if isinstance(value, ast.BoolOp) else [value]
        choices = [value.body, value.orelse] if isinstance(value, ast.IfExp) else choices
        for choice in choices:
            listed = (
                choice.args[0]
                if isinstance(choice, ast.Call) and last_name(choice.func) in _COMPOSED and choice.args
                else choice
            )
            results = list(returned_by(code, choice)) if isinstance(choice, ast.Call) and choice is listed else []
            found += origins(code, listed, deep + 1) if isinstance(listed, ast.Name) else results or [choice]
    return found


def _may_be_random(name: str) -> bool:
    """Albumentations draws random numbers for all transforms but these."""
    return name.startswith("albumentations.") and not name.endswith(_DETERMINISTIC)


def to_datasets(code: Code) -> Iterator[Found]:
    """Yield `Pictures(files, transform=Compose([Resize(224), ToTensor()]))` of a class that caches no results."""
    if is_test(code.path):
        return
    seen: set[ast.expr] = set()
    for call in code.calls(*_COSTLY_NAMES):
        transform = _whole_transform(code, call)
        if transform in seen or repeated(code, transform) is not call or code.heat(call).frequency is Frequency.NEVER:
            continue
        seen.add(transform)
        if _is_set_on_dataset(code, transform) or any(
            _loads(code, term, path) for term, path in taking(code, transform)
        ):
            step = Step(code.path, call.lineno, "passed to a dataset, which calls it for every sample")
            yield Found(
                call,
                f"`{shown(call)}` computes the same result for every sample again in every epoch",
                "compute it once before training and keep the result in memory or on disk",
                heat=Heat(Frequency.SAMPLE, Confidence.HIGH, Side.LOAD, (step,)),
                confidence=Confidence.LOW
                if is_of_trial(code, call) or only_resizes(code, transform)
                else Confidence.MEDIUM,
            )


def _is_set_on_dataset(code: Code, transform: ast.expr) -> bool:
    """Recognise `train_set.dataset.transform = Compose([…])`."""
    parent = code.parent(transform)
    target = parent.targets[0] if isinstance(parent, ast.Assign) else None
    if not isinstance(target, ast.Attribute) or target.attr not in ("transform", "transforms"):
        return False
    return code.kind(target.value) == DATASET or last_name(target.value) == "dataset"


def _whole_transform(code: Code, call: ast.Call) -> ast.expr:
    """Return the Compose around the call, the list if it is composed later, or the call itself."""
    transform: ast.expr = call
    for outer in code.ancestors(call):
        if isinstance(outer, ast.stmt):
            break
        if (isinstance(outer, ast.Call) and last_name(outer.func) in _COMPOSED) or isinstance(outer, ast.List):
            transform = outer
    return transform


def _loads(code: Code, callee: Term, path: str) -> bool:
    """Recognise library datasets that read files, and datasets of the project that define `__getitem__`."""
    if isinstance(callee, tuple) and callee[0] == "name" and str(callee[1]).startswith(_STORED):
        return not str(callee[1]).endswith("FakeData")
    found = code.project.class_of(code.project.answer(("call", callee), path), path)
    if found is None:
        return isinstance(callee, tuple) and _goes_to_loader(code, callee, path)
    bases = {base for _, owner in code.project.lineage(*found) for base in owner.base_names}
    return code.project.method(found[0], found[1], "__getitem__") is not None or any(
        base in ("ImageFolder", "DatasetFolder") for base in bases
    )


def _goes_to_loader(code: Code, callee: tuple[Any, ...], path: str) -> bool:
    """Tell whether an unknown callee makes the dataset of a loader: `DataLoader(Cars(root, transform=resize))`."""
    for function in code.project.files[path].functions.values():
        for call in function.calls:
            named = isinstance(call.callee, tuple) and call.callee[0] == "name" and call.callee[1] in LOADER_NAMES
            if not (named or call.callee in LOADERS):
                continue
            dataset = call.arguments[0] if call.arguments else dict(call.keywords).get("dataset", UNKNOWN)
            if dataset[:1] == ("call",) and dataset[1] == callee:
                return True
    return False
