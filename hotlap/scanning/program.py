"""The source of a program that was observed: the files that were seen at work, judged with those around them."""

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
    """Findings in the user's own files, under the settings of their project."""
    paths = _own(_named(seen))
    if not paths:
        return Scan(())
    project = settings(Path(paths[0]).parent)
    sources, _ = files.discover(paths, project.exclude)
    context = files.surroundings(paths, sources, project.exclude)
    # One core: the caller may have threads, under which a fork can hang.
    return scan(sources, FindingFilter(project.select, project.ignore, project.pedantic), context, cores=1)


def _named(seen: Observation) -> Iterator[str]:
    """Files of the program, first as the observation writes them, so that its lines are found again."""
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


def _own(paths: Iterable[str]) -> list[str]:
    """Each file that is there, once, and no library's."""
    found: dict[Path, str] = {}
    for path in paths:
        own = path.endswith(".py") and not any(part in Path(path).parts for part in _LIBRARIES)
        if own and "/lib/python3." not in path and Path(path).is_file():
            found.setdefault(Path(path).resolve(), path)
    return list(found.values())
