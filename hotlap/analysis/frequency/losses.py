"""Judges by their purpose how often losses and metrics of a library run, if nothing in the library calls them."""

from __future__ import annotations

from collections.abc import Container, Iterator

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse.facts import Class
from hotlap.records.scan_finding import Confidence, Frequency, Step

_RESULTS = frozenset("compute result results get_value value get_metric get_score evaluate summary".split())


def by_kind(project: Project, called: Container[Reference]) -> Iterator[tuple[Reference, Heat]]:
    """Yield losses and metrics that nothing in the project calls; users of the library call them every batch."""
    for path, summary in project.files.items():
        for owner in summary.classes.values():
            for method in ("__call__", "update"):
                reference = Reference(path, f"{owner.name}.{method}")
                if method not in owner.methods or reference in called or not _takes_two(project, reference):
                    continue
                kind = _kind(project, path, owner, method)
                if kind:
                    step = Step(path, project.function(reference).line, f"{owner.name} is a {kind}, called every batch")
                    side = Side.TRAIN if kind == "loss" else Side.EVALUATE
                    yield reference, Heat(Frequency.BATCH, Confidence.MEDIUM, side, (step,))


def _takes_two(project: Project, reference: Reference) -> bool:
    """Return whether a function takes both predictions and targets."""
    return len(project.function(reference).parameters) > 2


def _kind(project: Project, path: str, owner: Class, method: str) -> str:
    bases = [base.lower() for base in project.base_names(path, owner)]
    if method == "__call__":
        loss = any("loss" in name for name in (owner.name.rsplit(".", 1)[-1].lower(), *bases))
        return "metric" if any("metric" in base for base in bases) else "loss" if loss else ""
    return "metric" if "reset" in owner.methods and owner.methods & _RESULTS else ""
