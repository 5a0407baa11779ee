"""Finds loaders whose workers are restarted every epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.features import LEFT_WORKERS, NO_WORKERS, SOME_WORKERS
from hotlap.analysis.queries import loaders, rounds
from hotlap.analysis.queries.code import Code
from hotlap.analysis.queries.defaults import default, is_given, is_left_at
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import set_to
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = ("oader(", "DataLoader", "num_workers")


def find(code: Code) -> Iterator[Found]:
    for loader in loaders.loaders(code):
        workers = loader.settings.get("num_workers")
        if workers is None or loader.workers() == "none" or not loader.lacks("persistent_workers"):
            continue
        if is_left_at(code, workers, 0):
            continue  # there are no workers
        if "persistent_workers" in loader.settings and loader.workers() == "unknown":
            continue  # a deliberate choice
        if (
            loaders.is_changed_between(code, loader)
            or rounds.is_once(code, loader)
            or rounds.is_made_anew(code, loader)
        ):
            continue
        value = "True" if loader.workers() == "some" else f"{ast.unparse(workers)} > 0"
        yield Found(
            loader.call,
            "its workers are stopped and restarted every epoch",
            f"keep them alive: persistent_workers={value}",
            Applicability.UNSAFE if _is_repeatable(loader.call) else Applicability.DISPLAY_ONLY,
            loaders.heat(code, loader),
            _confidence(code, loader),
            {"value": value},
        )


def _confidence(code: Code, loader: loaders.Loader) -> Confidence | None:
    """Return low confidence for a number set elsewhere that is 0 wherever the project gives one."""
    if loader.workers() != "unknown":
        return None
    workers = loader.settings["num_workers"]
    if not code.project_uses(SOME_WORKERS):
        unset = isinstance(workers, ast.Attribute) and code.project_uses(NO_WORKERS)
        if unset or _is_zero(code, workers) or _is_left(code, workers):
            return Confidence.LOW
    return Confidence.MEDIUM


def _is_left(code: Code, value: ast.expr) -> bool:
    """Match a required argument whose callers have a default of 0 themselves."""
    function = code.function(value)
    if function is None or not isinstance(value, ast.Name) or default(code, value) is not None:
        return False
    named = value.id in {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
    return named and is_given(code, value) is True and code.project_uses(LEFT_WORKERS)


def _is_zero(code: Code, value: ast.expr) -> bool:
    """Match an argument with default 0, or an attribute set to one; callers of the project pass no other value."""
    if isinstance(value, ast.Attribute):
        made = set_to(code, value)
        return bool(made) and all(isinstance(origin, ast.Name) and _is_zero(code, origin) for origin in made)
    known = default(code, value) if isinstance(value, ast.Name) else None
    return isinstance(known, ast.Constant) and known.value == 0


def _is_repeatable(call: ast.Call) -> bool:
    """Return whether the call itself gives the number, and reading it twice gives the same value at no cost."""
    return isinstance(loaders.written_workers(call), ast.Constant | ast.Name | ast.Attribute)
