"""Finds files whose models never leave the host: neither they nor the files around them name a device."""

from __future__ import annotations

from functools import lru_cache

from hotlap.analysis.names.project import Project
from hotlap.analysis.parse.facts import Summary
from hotlap.analysis.parse.features import DEVICES


def keeps_to_host(project: Project, path: str) -> bool:
    """Return whether a file has its own model and optimizer, and shares nothing with files that name a device."""
    summary = project.files[path]
    if DEVICES in summary.uses or not any(function.builds for function in summary.functions.values()):
        return False
    if not any(project.is_module(path, owner) for owner in summary.classes.values()):
        return False
    return path not in _taken(project) and not any(
        DEVICES in project.files[source].uses for source in _taking(project, summary)
    )


@lru_cache(maxsize=2)
def _taken(project: Project) -> frozenset[str]:
    """Return the files that are imported by files that name a device."""
    named = (summary for summary in project.files.values() if DEVICES in summary.uses)
    return frozenset(path for summary in named for path in _taking(project, summary))


def _taking(project: Project, summary: Summary) -> set[str]:
    """Return the other files of the project that a file imports from."""
    found = set()
    for term in summary.names.values():
        if isinstance(term, tuple) and term[0] == "name":
            place = project.definition(term[1], summary.path)
            found.add(place[0] if place is not None else project.module_file(term[1], summary.path))
    return {path for path in found if path is not None and path != summary.path}
