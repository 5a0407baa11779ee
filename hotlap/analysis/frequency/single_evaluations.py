"""Evaluations that a program makes once: a prediction, a test after the training."""

from __future__ import annotations

from functools import lru_cache
from pathlib import PurePath

from hotlap.analysis.frequency.loops import Loops
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.parse.facts import Function, Summary
from hotlap.analysis.parse.terms import Term

_STARTS = frozenset(("", "main", "cli", "run_cli"))
_PREDICTING = frozenset(
    "predict predicts prediction predictions infer inference encode embed embeddings transform score rank recommend "
    "detect generate sample extract export visualize plot demo decode translate result results report interpret "
    "explain".split()
)
_TESTING = frozenset(("test", "testing"))
_VALIDATING = frozenset("val valid validation validate dev eval evaluate evaluation".split())
_LOADING = frozenset("load_state_dict load_model load_checkpoint load_weights load_from_checkpoint load_best".split())


def is_made_once(loops: Loops, reference: Reference) -> bool:
    """No training leads to it, as far as the project shows: it stands beside a whole one, or is begun by hand."""
    above = _above(loops, reference)
    if above & loops.trainings:
        return True
    begun = [one for one in above if not any(where in above for where, _ in loops.callers.get(one, ()) if where != one)]
    return bool(begun) and all(_is_start(loops, one) for one in begun)


def _above(loops: Loops, reference: Reference) -> set[Reference]:
    """All that lead to it, and itself, as far as one that predicts, whoever asks for that. What tests do, says nothing
    of how a program uses it."""
    found, waiting = {reference}, [reference]
    while waiting:
        here = waiting.pop()
        for one, _ in () if _predicts(here.name.rpartition(".")[2]) else loops.callers.get(here, ()):
            if one not in found and not in_tests(one.path):
                found.add(one)
                waiting.append(one)
    return found


def is_forgotten(loops: Loops, reference: Reference) -> bool:
    """A function beside others that a script of the same folder, or this one, uses: nobody calls it or hands it on."""
    files, function = loops.project.files, loops.project.function(reference)
    plain = reference.name and "." not in reference.name and not function.owner and not _is_registered(function)
    if not plain or reference.name in _STARTS or loops.callers.get(reference) or is_packed(loops, reference.path):
        return False
    folder = PurePath(reference.path).parent
    used = any(
        where.name in _STARTS
        and (where.path != reference.path or where.name == "")
        and PurePath(where.path).parent == folder
        for name in files[reference.path].functions
        if name != reference.name
        for where, _ in loops.callers.get(Reference(reference.path, name), ())
    )
    return used and reference.name not in _spoken_of(loops)


def _is_registered(function: Function) -> bool:
    """Something gets it by a decorator: a command line, a registry."""
    return any(not name.startswith("torch.") for name, _ in function.decorators)


def is_packed(loops: Loops, path: str) -> bool:
    """Part of a package: others may call what it has."""
    folder = PurePath(path).parent
    return any(one.package and PurePath(where).parent == folder for where, one in loops.project.files.items())


@lru_cache(maxsize=2)
def _spoken_of(loops: Loops) -> frozenset[str]:
    """The last names of all that is called, or given to what is called, anywhere in the project."""
    found: set[str] = set()
    for _, function in loops.project.functions():
        for call in function.calls:
            for term in (call.callee, *call.arguments, *(one for _, one in call.keywords)):
                found |= _last_names(term)
    return frozenset(found)


def _last_names(term: Term) -> set[str]:
    if isinstance(term, str):
        return {term.rpartition(".")[2]}
    if term[0] == "param":  # has the name of its function
        return set()
    return {name for part in term if isinstance(part, str | tuple) for name in _last_names(part)}


def is_tested(summary: Summary) -> bool:
    """A file of tests, by its folder from the top of what is scanned, or by what it holds; not just a test.py."""
    *folders, name = summary.module.split(".")
    if any(part in ("tests", "test") for part in folders) or name == "conftest":
        return True
    return name.startswith("test_") and any(one.rpartition(".")[2].startswith("test_") for one in summary.functions)


def in_tests(path: str) -> bool:
    parts = PurePath(path).parts
    return any(part in ("tests", "test", "testing") or part.startswith(("test_", "conftest")) for part in parts)


def _is_start(loops: Loops, reference: Reference) -> bool:
    """The code of a script; something that predicts, or loads a model first; or what is private, and nobody calls."""
    owner, _, name = reference.name.rpartition(".")
    if name in _STARTS or _predicts(name) or _is_last_test(loops, reference):
        return True
    if _loads_model(loops.project.function(reference)):
        return True
    known = loops.project.files[reference.path].classes.get(owner)
    outside = known is not None and any(
        one not in ("object", "ABC") and not loops.project.lineage(reference.path, known)[1:]
        for one in known.base_names
    )
    return name.startswith("_") and not name.startswith("__") and not outside


def _is_last_test(loops: Loops, reference: Reference) -> bool:
    """`test` beside `validate`, both in one file or class: what a training uses every epoch is the other one."""
    owner, _, name = reference.name.rpartition(".")
    if not _TESTING & _words(name) or _VALIDATING & _words(name):
        return False
    beside = (one.rpartition(".") for one in loops.project.files[reference.path].functions)
    return any(where == owner and _VALIDATING & _words(one) for where, _, one in beside)


def _words(name: str) -> set[str]:
    return set(name.lower().strip("_").split("_"))


def _predicts(name: str) -> bool:
    return bool(_PREDICTING & _words(name))


def _loads_model(function: Function) -> bool:
    """`model.load_state_dict(torch.load(path))`: what was trained before is tried now."""
    return any(
        isinstance(call.callee, tuple) and call.callee[0] == "attr" and call.callee[2] in _LOADING
        for call in function.calls
    )
