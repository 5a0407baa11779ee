"""Loaders whose workers are started again for every epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.model.scanned import Applicability, Confidence
from hotlap.source import loaders, rounds
from hotlap.source.code import Code
from hotlap.source.rule import Found

WORDS = ("oader(", "DataLoader", "num_workers")


def find(code: Code) -> Iterator[Found]:
    for one in loaders.loaders(code):
        workers = one.settings.get("num_workers")
        if workers is None or one.workers() == "none" or not one.lacks("persistent_workers"):
            continue
        if "persistent_workers" in one.settings and one.workers() == "unknown":
            continue  # somebody chose it
        if loaders.is_changed_between(code, one) or rounds.is_once(code, one):
            continue
        value = "True" if one.workers() == "some" else f"{ast.unparse(workers)} > 0"
        yield Found(
            one.call,
            "its workers are stopped and started again every epoch",
            f"keep them: persistent_workers={value}",
            Applicability.UNSAFE if _is_simple(workers) else Applicability.DISPLAY_ONLY,
            loaders.heat(code, one),
            Confidence.MEDIUM if one.workers() == "unknown" else None,
            {"value": value},
        )


def _is_simple(workers: ast.expr) -> bool:
    """Asking twice gives the same answer and costs nothing."""
    return isinstance(workers, ast.Constant | ast.Name | ast.Attribute)
