"""Modules that compute the same of every sample, and transforms made of them that a dataset is given."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.parse.terms import DATASET, LOADERS, UNKNOWN, Term
from hotlap.analysis.parse.torch_names import LOADER_NAMES
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.loaders import is_of_trial
from hotlap.analysis.queries.memory import returned_by
from hotlap.analysis.queries.receivers import taking
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import in_tests, set_to
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Confidence, Frequency, Step

_MADE = (
    "torchaudio.transforms.",
    "torchvision.transforms.Resize",
    "torchvision.transforms.v2.Resize",
    "albumentations.Resize",
    "albumentations.LongestMaxSize",
    "albumentations.SmallestMaxSize",
)
_LAST = frozenset(name.rsplit(".", 1)[1] for name in _MADE if not name.endswith(".")) | frozenset(
    "MelSpectrogram Spectrogram MFCC Resample AmplitudeToDB".split()
)
_RANDOM = ("Mask", "Stretch", "AddNoise", "Vol", "Fade", "Random", "Jitter", "Augment", "Erasing")
_SURE = ("Resize", "Size", "Normalize", "ToTensorV2", "PadIfNeeded", "CenterCrop", "ToFloat", "ToGray")
_DEEPEST = 3  # names of names
_COMPOSED = ("Sequential", "Compose")
_STORED = ("torchvision.datasets.", "torchaudio.datasets.")


def repeated(code: Code, node: ast.expr) -> ast.Call | None:
    """The costly module that a transform begins with: all up to it gives the same in every epoch."""
    for module in _parts(node):
        name = code.full_name(module.func)
        if any(word in name for word in _RANDOM) or _may_be_random(name):
            return None  # what follows differs from epoch to epoch
        if name.startswith(_MADE):
            return module
    return None


def _parts(node: ast.expr) -> list[ast.Call]:
    """The modules of a Sequential or a Compose, or the module itself."""
    if isinstance(node, ast.List) or (isinstance(node, ast.Call) and last_name(node.func) in _COMPOSED):
        return [part for part in walk(node) if isinstance(part, ast.Call) and part is not node]
    return [node] if isinstance(node, ast.Call) else []


def origins(code: Code, node: ast.expr, deep: int = 0) -> list[ast.expr]:
    """What a name is set to: through `given or DEFAULT`, a choice, another name, and a list that is composed."""
    found: list[ast.expr] = []
    for value in set_to(code, node) if deep < _DEEPEST else ():
        parts = value.values if isinstance(value, ast.BoolOp) else [value]
        parts = [value.body, value.orelse] if isinstance(value, ast.IfExp) else parts
        for part in parts:
            listed = (
                part.args[0] if isinstance(part, ast.Call) and last_name(part.func) in _COMPOSED and part.args else part
            )
            made = list(returned_by(code, part)) if isinstance(part, ast.Call) and part is listed else []
            found += origins(code, listed, deep + 1) if isinstance(listed, ast.Name) else made or [part]
    return found


def _may_be_random(name: str) -> bool:
    """Albumentations draws before it does anything but these."""
    return name.startswith("albumentations.") and not name.endswith(_SURE)


def to_datasets(code: Code) -> Iterator[Found]:
    """`Pictures(files, transform=Compose([Resize(224), ToTensor()]))`, of a class that keeps none of the results."""
    if in_tests(code.path):
        return
    seen: set[ast.expr] = set()
    for call in code.calls(*_LAST):
        whole = _whole(code, call)
        if whole in seen or repeated(code, whole) is not call or code.heat(call).frequency is Frequency.NEVER:
            continue
        seen.add(whole)
        if _is_put_on(code, whole) or any(_loads(code, term, path) for term, path in taking(code, whole)):
            step = Step(code.path, call.lineno, "a dataset is given it, and calls it for every sample")
            yield Found(
                call,
                f"`{shown(call)}` computes the same of every sample again in every epoch",
                "compute it once before training and keep the result in memory or on disk",
                heat=Heat(Frequency.SAMPLE, Confidence.HIGH, Side.LOAD, (step,)),
                confidence=Confidence.LOW if is_of_trial(code, call) else Confidence.MEDIUM,
            )


def _is_put_on(code: Code, whole: ast.expr) -> bool:
    """`train_set.dataset.transform = Compose([…])`."""
    parent = code.parent(whole)
    target = parent.targets[0] if isinstance(parent, ast.Assign) else None
    if not isinstance(target, ast.Attribute) or target.attr not in ("transform", "transforms"):
        return False
    return code.kind(target.value) == DATASET or last_name(target.value) == "dataset"


def _whole(code: Code, call: ast.Call) -> ast.expr:
    """The Compose that it is part of, or itself; of a list that is composed later, the list."""
    whole: ast.expr = call
    for outer in code.ancestors(call):
        if isinstance(outer, ast.stmt):
            break
        if (isinstance(outer, ast.Call) and last_name(outer.func) in _COMPOSED) or isinstance(outer, ast.List):
            whole = outer
    return whole


def _loads(code: Code, callee: Term, path: str) -> bool:
    """A dataset of a library that reads files, or one of the project whose class has `__getitem__`."""
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
    """Something that is not in sight makes the dataset of a loader: `DataLoader(Cars(root, transform=resize))`."""
    for function in code.project.files[path].functions.values():
        for call in function.calls:
            named = isinstance(call.callee, tuple) and call.callee[0] == "name" and call.callee[1] in LOADER_NAMES
            if not (named or call.callee in LOADERS):
                continue
            given = call.arguments[0] if call.arguments else dict(call.keywords).get("dataset", UNKNOWN)
            if given[:1] == ("call",) and given[1] == callee:
                return True
    return False
