"""Finds evaluations that a program makes once: a prediction, a test after the training."""

from __future__ import annotations

from functools import lru_cache
from pathlib import PurePath

from hotlap.analysis.frequency.loops import Loops
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.parse.facts import Function, Summary
from hotlap.analysis.parse.files import is_test
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
    """Return whether an evaluation is made once: it stands beside a whole training, or is started by hand."""
    above = _above(loops, reference)
    if above & loops.trainings:
        return True
    begun = [
        caller
        for caller in above
        if not any(where in above for where, _ in loops.callers.get(caller, ()) if where != caller)
    ]
    return bool(begun) and all(_is_start(loops, start) for start in begun)


def _above(loops: Loops, reference: Reference) -> set[Reference]:
    """Return the function and all that lead to it. The search stops at functions that predict, and skips tests, which
    do not show how a program uses the function."""
    found, waiting = {reference}, [reference]
    while waiting:
        here = waiting.pop()
        for caller, _ in () if _predicts(here.name.rpartition(".")[2]) else loops.callers.get(here, ()):
            if caller not in found and not is_test(caller.path):
                found.add(caller)
                waiting.append(caller)
    return found


def is_forgotten(loops: Loops, reference: Reference) -> bool:
    """Match a function that nobody calls or passes on, while a script of the folder, or the file's own code, uses its
    neighbours."""
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
    """Return whether a decorator registers the function, with a command line or a registry."""
    return any(not name.startswith("torch.") for name, _ in function.decorators)


def is_packed(loops: Loops, path: str) -> bool:
    """Return whether a file is part of a package, whose functions others may call."""
    folder = PurePath(path).parent
    return any(summary.package and PurePath(where).parent == folder for where, summary in loops.project.files.items())


@lru_cache(maxsize=2)
def _spoken_of(loops: Loops) -> frozenset[str]:
    """Return the last names of everything that is called, or passed to a call, anywhere in the project."""
    terms: set[Term] = set()
    for _, function in loops.project.functions():
        for call in function.calls:
            terms.update((call.callee, *call.arguments, *(value for _, value in call.keywords)))
    waiting, seen, names = list(terms), terms, set()
    while waiting:
        term = waiting.pop()
        if isinstance(term, str):
            names.add(term.rpartition(".")[2])
        elif term[0] != "param":  # has the name of its function
            new = [part for part in term if isinstance(part, str | tuple) and part not in seen]
            seen.update(new)
            waiting += new
    return frozenset(names)


def is_tested(summary: Summary) -> bool:
    """Match a file of tests, by its folder within what is scanned or by its contents; a name like test.py is not
    enough."""
    *folders, name = summary.module.split(".")
    if any(part in ("tests", "test") for part in folders) or name == "conftest":
        return True
    return name.startswith("test_") and any(
        function.rpartition(".")[2].startswith("test_") for function in summary.functions
    )


def _is_start(loops: Loops, reference: Reference) -> bool:
    """Match the code of a script, functions that predict or load a model, and private functions that nobody calls."""
    owner, _, name = reference.name.rpartition(".")
    if name in _STARTS or _predicts(name) or _is_last_test(loops, reference):
        return True
    if _loads_model(loops.project.function(reference)):
        return True
    known = loops.project.files[reference.path].classes.get(owner)
    outside = known is not None and any(
        base not in ("object", "ABC") and not loops.project.lineage(reference.path, known)[1:]
        for base in known.base_names
    )
    return name.startswith("_") and not name.startswith("__") and not outside


def _is_last_test(loops: Loops, reference: Reference) -> bool:
    """Match `test` beside `validate` in one file or class: a training uses only the latter every epoch."""
    owner, _, name = reference.name.rpartition(".")
    if not _TESTING & _words(name) or _VALIDATING & _words(name):
        return False
    beside = (function.rpartition(".") for function in loops.project.files[reference.path].functions)
    return any(where == owner and _VALIDATING & _words(neighbour) for where, _, neighbour in beside)


def _words(name: str) -> set[str]:
    return set(name.lower().strip("_").split("_"))


def _predicts(name: str) -> bool:
    return bool(_PREDICTING & _words(name))


def _loads_model(function: Function) -> bool:
    """Match `model.load_state_dict(torch.load(path))`: the function uses a model that was trained before."""
    return any(
        isinstance(call.callee, tuple) and call.callee[0] == "attr" and call.callee[2] in _LOADING
        for call in function.calls
    )
