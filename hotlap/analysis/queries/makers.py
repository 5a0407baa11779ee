"""Finds functions and classes of the project that make a DataLoader from their arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse.facts import Function, KeywordForwarding
from hotlap.analysis.parse.forwarded_keywords import BASE, ELSEWHERE
from hotlap.analysis.parse.statements import is_static
from hotlap.analysis.parse.torch_names import LOADER_NAMES
from hotlap.analysis.queries.code import Code

POSITIONS = (
    "dataset batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory drop_last timeout "
    "worker_init_fn multiprocessing_context generator"
).split()
_UNKNOWN = ast.Name("elsewhere", ast.Load())


@dataclass(frozen=True)
class Maker:
    """The settings that a call passes to the loader: for each a constant, or the argument that it comes from."""

    parameters: tuple[str, ...]  # without self
    settings: dict[str, tuple[str, Any]]


@lru_cache(maxsize=2)
def makers(project: Project) -> dict[Reference, Maker]:
    """Return functions that forward their `**options` to a loader, and constructors of loader subclasses."""
    found: dict[Reference, Maker] = {}
    for _ in range(2):  # a maker may call another one
        for reference, function in project.functions():
            for forwarding in function.forwardings:
                settings = _settings(project, reference, function, forwarding, found)
                if settings is not None:
                    found.setdefault(reference, Maker(_own(function), settings))
    return found


@lru_cache(maxsize=2)
def names(project: Project) -> frozenset[str]:
    """Return the last names by which makers are called."""
    found = set()
    for reference in makers(project):
        parts = reference.name.split(".")
        found.add(parts[-2] if parts[-1] == "__init__" and len(parts) > 1 else parts[-1])
    return frozenset(found | set(plain_classes(project)))


@lru_cache(maxsize=2)
def plain_classes(project: Project) -> frozenset[str]:
    """Return the classes that inherit from torch's loader and have no constructor of their own."""
    return frozenset(
        owner.name.rsplit(".", 1)[-1]
        for path, summary in project.files.items()
        for owner in summary.classes.values()
        if project.base_names(path, owner) & LOADER_NAMES and project.method(path, owner, "__init__") is None
    )


def _own(function: Function) -> tuple[str, ...]:
    return function.parameters[1:] if function.owner and not is_static(function) else function.parameters


def _settings(
    project: Project,
    reference: Reference,
    function: Function,
    forwarding: KeywordForwarding,
    known: dict[Reference, Maker],
) -> dict[str, tuple[str, Any]] | None:
    if forwarding.callee == BASE:
        owner = project.files[reference.path].classes.get(function.owner)
        if owner is None or not project.base_names(reference.path, owner) & LOADER_NAMES:
            return None
        return {**dict(zip(POSITIONS, forwarding.arguments, strict=False)), **dict(forwarding.keywords)}
    answer = project.answer(forwarding.callee, reference.path)
    if isinstance(answer, tuple) and answer[0] == "name" and answer[1] in LOADER_NAMES:
        return {**dict(zip(POSITIONS, forwarding.arguments, strict=False)), **dict(forwarding.keywords)}
    targets = [
        target
        for target in project.targets(forwarding.callee, reference.path)
        if target in known and target != reference
    ]
    return _through(known[targets[0]], forwarding) if targets else None


def _through(inner: Maker, forwarding: KeywordForwarding) -> dict[str, tuple[str, Any]]:
    """Return the settings of a maker that calls another maker."""
    given = {**dict(zip(inner.parameters, forwarding.arguments, strict=False)), **dict(forwarding.keywords)}
    settings = {word: value for word, value in given.items() if word not in inner.parameters}
    for word, (source, default) in inner.settings.items():
        name = source.removeprefix("argument ")
        plain = ("constant", default) if default != ELSEWHERE else (ELSEWHERE, None)
        settings[word] = given.get(name, plain) if source.startswith("argument ") else (source, default)
    return settings


def calls(code: Code) -> Iterator[tuple[ast.Call, Maker | None]]:
    """Yield the calls of makers in a file; the maker is None for a class that is called like torch's own."""
    every = makers(code.project)
    for call in code.calls(*names(code.project)):
        targets = code.project.targets(code.asked(call.func), code.path)
        made = next((target for target in targets if target in every), None)
        if made is not None:
            yield call, None if _passes_all_on(code.project, made) else every[made]
        elif not targets and code.project.is_loader(code.term(call)):
            yield call, None


def puts_together(code: Code, call: ast.Call) -> bool:
    """Match a class that sets its `collate_fn` itself: what a batch costs, the data set does not tell."""
    owners = [
        code.project.files[target.path].classes.get(target.name.rpartition(".")[0])
        for target in code.project.targets(code.asked(call.func), code.path)
    ]
    return any(owner is not None and "collate_fn" in owner.attributes for owner in owners)


def _passes_all_on(project: Project, reference: Reference) -> bool:
    """Match a constructor `__init__(self, *args, **kwargs)` that hands all of it to torch's loader."""
    function = project.function(reference)
    plain = bool(function.rest) and not _own(function)
    return plain and any(forwarding.callee == BASE and not forwarding.keywords for forwarding in function.forwardings)


def bound(call: ast.Call, maker: Maker) -> dict[str, ast.expr]:
    """Return the settings of the loader that a call makes; an unknown value is a placeholder name."""
    given = dict(zip(maker.parameters, call.args, strict=False))
    given |= {word.arg: word.value for word in call.keywords if word.arg is not None}
    settings: dict[str, ast.expr] = {word: value for word, value in given.items() if word not in maker.parameters}
    for word, (source, value) in maker.settings.items():
        settings[word] = _expression(source, value, given)
    return settings


def _expression(source: str, value: Any, given: dict[str, ast.expr]) -> ast.expr:
    if source == "constant":
        return ast.Constant(value)
    name = source.removeprefix("argument ")
    if source.startswith("argument ") and name in given:
        return given[name]
    return ast.Constant(value) if source.startswith("argument ") and value != ELSEWHERE else _UNKNOWN
