"""Finds classes of the project that data passes through: batch objects, and modules that prepare samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse.facts import Function
from hotlap.analysis.parse.terms import Term
from hotlap.records.scan_finding import Confidence, Frequency, Step

_MOVES = ("to", "cuda", "to_device")
MOVING = "moves the batch to the device"
GIVING = "yields the batches of that loop"


def moved_batches(project: Project, functions: Mapping[Reference, Heat]) -> Iterator[tuple[Reference, Heat]]:
    """Yield methods such as `Graphs.to`, which run for every batch if a collate function makes a `Graphs`."""
    for reference, heat in list(functions.items()):
        if heat.side is not Side.LOAD or heat.frequency is not Frequency.BATCH:
            continue
        for call in project.function(reference).calls:
            for method in _moving_methods(project, project.answer(("call", call.callee), reference.path)):
                step = Step(method.path, project.function(method).line, MOVING)
                yield method, Heat(Frequency.BATCH, Confidence.MEDIUM, Side.TRAIN, (*heat.why, step))


def deep_movers(project: Project, functions: Mapping[Reference, Heat]) -> Iterator[tuple[Reference, Heat]]:
    """Yield functions that move a tensor and call themselves for the parts of a list or mapping. Training code moves
    its batches with them, even if no call is found."""
    for reference, function in project.functions():
        if not function.moves or reference in functions:
            continue
        if any(reference in project.targets(call.callee, reference.path) for call in function.calls):
            step = Step(reference.path, function.line, MOVING)
            yield reference, Heat(Frequency.BATCH, Confidence.MEDIUM, Side.TRAIN, (step,))


def feeders(project: Project, over: Term, path: str) -> Iterator[Reference]:
    """Yield the generators that a loop iterates over: called in the loop's header, or the `__iter__` of an object."""
    if not isinstance(over, tuple):
        return
    if over[0] in ("enumerated", "zipped"):
        for part in over[1:]:
            yield from feeders(project, part, path)
        return
    if over[0] == "call":
        yield from (target for target in project.targets(over[1], path) if project.function(target).generates)
    owner = project.class_of(project.answer(over, path), path)
    if owner is None:
        return
    for name in ("__iter__", "__next__"):
        method = project.method(*owner, name)
        if method is not None and (name == "__next__" or project.function(method).generates):
            yield method


def sampled_modules(project: Project) -> Iterator[Reference]:
    """Yield the modules that prepare samples, where a dataset takes a list of them: `transforms: list[Transform]`."""
    for path, summary in project.files.items():
        for owner in summary.classes.values():
            if "__getitem__" not in owner.methods or project.is_module(path, owner):
                continue
            for where, base in project.lineage(path, owner):
                for function in project.files[where].functions.values():
                    if function.owner == base.name:
                        yield from _listed_modules(project, where, function)


def _listed_modules(project: Project, path: str, function: Function) -> Iterator[Reference]:
    """Yield the forward methods of the classes whose lists a function takes as arguments, and of their subclasses."""
    for annotation in function.annotations:
        if not isinstance(annotation, tuple) or annotation[0] != "list":
            continue
        owner = project.class_of(project.answer(annotation[1], path), path)
        if owner is not None and project.is_module(*owner):
            method = project.method(*owner, "forward")
            yield from (method,) if method is not None else ()
            yield from project.overrides(*owner, "forward")


def _moving_methods(project: Project, answer: object) -> Iterator[Reference]:
    owner = project.class_of(answer, "") if isinstance(answer, tuple) else None
    if owner is None or project.is_module(*owner):
        return
    for name in _MOVES:
        method = project.method(*owner, name)
        if method is not None:
            yield method
