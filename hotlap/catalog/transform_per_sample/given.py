"""Modules that compute the same of every sample, and transforms made of them that a dataset is given."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.model.scanned import Confidence, Frequency, Step
from hotlap.source.code import Code, last_name
from hotlap.source.heat import Heat, Side
from hotlap.source.loaders import is_of_trial
from hotlap.source.rule import Found
from hotlap.source.samples import in_tests
from hotlap.source.syncs import shown
from hotlap.source.walking import walk

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
_STORED = ("torchvision.datasets.", "torchaudio.datasets.")


def repeated(code: Code, node: ast.expr) -> ast.Call | None:
    """The costly module that a transform begins with: all up to it gives the same in every epoch."""
    for one in _parts(node):
        name = code.full_name(one.func)
        if any(word in name for word in _RANDOM) or _may_be_random(name):
            return None  # what follows differs from epoch to epoch
        if name.startswith(_MADE):
            return one
    return None


def _parts(node: ast.expr) -> list[ast.Call]:
    """The modules of a Sequential or a Compose, or the module itself."""
    if not isinstance(node, ast.Call):
        return []
    if last_name(node.func) in ("Sequential", "Compose"):
        return [one for one in ast.walk(node) if isinstance(one, ast.Call) and one is not node]
    return [node]


def _may_be_random(name: str) -> bool:
    """Albumentations draws before it does anything but these."""
    return name.startswith("albumentations.") and not name.endswith(_SURE)


def to_datasets(code: Code) -> Iterator[Found]:
    """`Pictures(files, transform=Compose([Resize(224), ToTensor()]))`, of a class that keeps none of the results."""
    if in_tests(code.path):
        return
    seen: set[ast.Call] = set()
    for call in code.calls(*_LAST):
        whole = _whole(code, call)
        if whole in seen or repeated(code, whole) is not call or code.heat(call).frequency is Frequency.NEVER:
            continue
        seen.add(whole)
        if any(_loads(code, one) for one in _taken(code, whole)):
            step = Step(code.path, call.lineno, "a dataset is given it, and calls it for every sample")
            yield Found(
                call,
                f"`{shown(call)}` computes the same of every sample again in every epoch",
                "compute it once before training and keep the result in memory or on disk",
                heat=Heat(Frequency.SAMPLE, Confidence.HIGH, Side.LOAD, (step,)),
                confidence=Confidence.LOW if is_of_trial(code, call) else Confidence.MEDIUM,
            )


def _whole(code: Code, call: ast.Call) -> ast.Call:
    """The Compose that it is part of, or itself."""
    whole = call
    for one in code.ancestors(call):
        if isinstance(one, ast.stmt):
            break
        if isinstance(one, ast.Call) and last_name(one.func) in ("Sequential", "Compose"):
            whole = one
    return whole


def _taken(code: Code, made: ast.Call, deep: int = 0) -> Iterator[ast.Call]:
    """The calls that are given it: straight, by the name it was set to, or by a function that returns it."""
    parent = code.parent(made)
    if isinstance(parent, ast.keyword):
        parent = code.parent(parent)
    if isinstance(parent, ast.Call) and made is not parent.func:
        yield parent
    elif isinstance(parent, ast.Return) and deep == 0:
        function = code.function(made)
        for call in code.calls(function.name) if function is not None else ():
            yield from _taken(code, call, deep + 1)
    elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        name = parent.targets[0].id
        for node in walk(code.function(made) or code.tree):
            if isinstance(node, ast.Call) and any(_is_named(one, name) for one in _arguments(node)):
                yield node


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(word.value for word in call.keywords)]


def _is_named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _loads(code: Code, call: ast.Call) -> bool:
    """A dataset of a library that reads files, or one of the project whose class has `__getitem__`."""
    name = code.full_name(call.func)
    if name.startswith(_STORED):
        return not name.endswith("FakeData")
    found = code.project.class_of(code.project.answer(code.asked(call), code.path), code.path)
    if found is None:
        return False
    bases = {one for _, owner in code.project.lineage(*found) for one in owner.base_names}
    return code.project.method(found[0], found[1], "__getitem__") is not None or any(
        base in ("ImageFolder", "DatasetFolder") for base in bases
    )
