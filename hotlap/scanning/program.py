"""Scan the source of an observed program: the files that were seen running, in the context of those around them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from hotlap.analysis.parse import files
from hotlap.records.observation import Observation
from hotlap.records.scan_finding import Scan
from hotlap.scanning.crew import scan
from hotlap.scanning.file_scan import FindingFilter
from hotlap.scanning.settings import settings

_MODULE = re.compile(r"[A-Za-z_]\w{0,80}(\.\w{1,80}){0,8}")
_LIBRARIES = ("site-packages", "dist-packages")


def scan_program(seen: Observation) -> Scan:
    """Return the findings in the user's own files, under the settings of their project."""
    paths = _own_files(_program_files(seen))
    if not paths:
        return Scan(())
    project = settings(Path(paths[0]).parent)
    sources, _ = files.discover(paths, project.exclude)
    context = files.surroundings(paths, sources, project.exclude)
    # One core: the caller may have threads, and a fork in a process with threads can hang.
    finding_filter = FindingFilter(project.select, project.ignore, project.pedantic, project.preview)
    return scan(sources, finding_filter, context, cores=1)


def _program_files(seen: Observation) -> Iterator[str]:
    """Yield the files of the program, first as the observation spells them, so that its lines match the findings."""
    places = [model.place for model in seen.models] + [loader.dataset_place for loader in seen.loaders]
    yield from (sync.file for sync in seen.syncs)
    yield from (copy.file for copy in seen.copies)
    yield from (line.file for line in seen.hot_lines)
    yield from (place.file for place in places if place)
    folder = Path(seen.directory)
    for word in seen.command[1:]:
        if word.endswith(".py"):
            yield str(folder / word)
        elif _MODULE.fullmatch(word):
            yield f"{folder.joinpath(*word.split('.'))}.py"


def _own_files(paths: Iterable[str]) -> list[str]:
    """Return each existing file once, without those of libraries."""
    found: dict[Path, str] = {}
    for path in paths:
        own = path.endswith(".py") and not any(folder in Path(path).parts for folder in _LIBRARIES)
        if own and "/lib/python3." not in path and Path(path).is_file():
            found.setdefault(Path(path).resolve(), path)
    return list(found.values())
