"""A scan: read every file, see how hot each function is across all of them, then let the rules look.

Every core reads a part of the files, gets what the others read, and looks at its own part. It keeps what it has read
closely, so that a file is parsed once, as long as that fits into memory.
"""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from hotlap.analysis.frequency.hotness import Hotness
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse import files, flow
from hotlap.analysis.parse.facts import Summary
from hotlap.analysis.parse.files import ParsedFile, Source
from hotlap.machine import usable_cores
from hotlap.records.scan_finding import Scan, ScanFinding, Unread
from hotlap.scanning.cells import in_cells
from hotlap.scanning.file_scan import FindingFilter, State, look, our_bug

_ALONE = 300_000  # bytes; below it starting processes costs more than they save
_KEPT = 6_000_000  # bytes of source kept as trees, some 750 MB; what is beyond is parsed again
_Work = tuple[tuple[Source, ...], frozenset[str], FindingFilter]


@dataclass(frozen=True)
class _Read:
    """What one process read."""

    summaries: tuple[Summary, ...]
    unread: tuple[Unread, ...]
    lines: int


_Result = tuple[list[_Read], list[ScanFinding | Unread]]


def scan(
    sources: Sequence[Source], wanted: FindingFilter, context: Sequence[Source] = (), cores: int | None = None
) -> Scan:
    """Findings in the sources. The context is read for what it says about them, and not reported on."""
    every, shown = [*sources, *context], frozenset(source.path for source in sources)
    cores = cores or usable_cores()
    if cores == 1 or sum(map(_size, every)) < _ALONE:
        read, found = _alone(every, shown, wanted)
    else:
        read, found = _together(_dealt(every, cores), shown, wanted)
    unread = [unreadable for part in read for unreadable in part.unread if unreadable.path in shown]
    unread += [unreadable for unreadable in found if isinstance(unreadable, Unread)]
    findings = [finding for finding in found if isinstance(finding, ScanFinding)]
    findings.sort(key=lambda finding: (finding.path, finding.line, finding.column, finding.code))
    findings = in_cells(findings)
    return Scan(tuple(findings), tuple(unread), len(sources), sum(part.lines for part in read))


def _alone(every: Sequence[Source], shown: frozenset[str], wanted: FindingFilter) -> _Result:
    with _no_collections():
        desk = Desk(shown)
        read = desk.read(every)
        return [read], desk.look([read], wanted)


class Desk:
    """What one process reads, keeps and looks at."""

    def __init__(self, shown: frozenset[str]) -> None:
        self.shown = shown
        self.kept: dict[str, tuple[ParsedFile, flow.FileReader]] = {}
        self.sources: dict[str, Source] = {}
        self.room = _KEPT

    def read(self, sources: Iterable[Source]) -> _Read:
        summaries, unread, lines = [], [], 0
        for source in sources:
            parsed = files.read(source)
            if isinstance(parsed, Unread):
                unread.append(parsed)
                continue
            lines += parsed.text.count("\n")
            try:
                summaries.append(self._summary(parsed))
            except RecursionError:
                unread.append(Unread(source.path, "is nested too deep to be followed"))
            except Exception as error:  # noqa: BLE001 our bug in one file must not hide the others
                unread.append(our_bug(source, error))
        return _Read(tuple(summaries), tuple(unread), lines)

    def _summary(self, parsed: ParsedFile) -> Summary:
        source = parsed.source
        given = (parsed.tree, source.path, source.module, parsed.text, source.package)
        if source.path not in self.shown:
            return flow.read(*given)
        self.sources[source.path] = source
        if len(parsed.text) > self.room:
            return flow.read(*given)
        self.room -= len(parsed.text)
        reader = flow.read_closely(*given)
        self.kept[source.path] = (parsed, reader)
        return reader.summary

    def look(self, read: Iterable[_Read], wanted: FindingFilter) -> list[ScanFinding | Unread]:
        """Findings in the files that this process has read."""
        summaries = sorted((summary for part in read for summary in part.summaries), key=lambda summary: summary.path)
        state = State(Hotness(Project(summaries)), wanted)
        found: list[ScanFinding | Unread] = []
        for path, source in self.sources.items():
            try:
                found += self._look_at(path, source, state)
            except RecursionError:
                found.append(Unread(path, "is nested too deep to be followed"))
            except Exception as error:  # noqa: BLE001 our bug in one file must not hide the others
                found.append(our_bug(source, error))
        return found

    def _look_at(self, path: str, source: Source, state: State) -> list[ScanFinding | Unread]:
        if path not in state.hotness.project.files:
            return []
        if path in self.kept:
            parsed, reader = self.kept.pop(path)
            return look(parsed, state, reader)
        text = files.load(source)
        if not isinstance(text, str) or not state.rules_for(text, path):
            return []  # parsing it again would be for nothing
        again = files.parse(source, text)
        return look(again, state) if isinstance(again, ParsedFile) else []


def _together(parts: Sequence[tuple[Source, ...]], shown: frozenset[str], wanted: FindingFilter) -> _Result:
    """A process for each part. What each has read is passed on as the bytes it came in."""
    forks = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    crew: list[tuple[BaseProcess, Connection]] = []
    try:
        for part in parts:
            mine, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, (part, shown, wanted)), daemon=True)
            process.start()
            theirs.close()
            crew.append((process, mine))
        read = [line.recv_bytes() for _, line in crew]
        for number, (_, line) in enumerate(crew):
            line.send([data for other, data in enumerate(read) if other != number])
        found = [result for _, line in crew for result in pickle.loads(line.recv_bytes())]
        return [pickle.loads(data) for data in read], found
    except (EOFError, OSError):  # a process was killed, for its memory perhaps: slower, but whole
        return _alone([source for part in parts for source in part], shown, wanted)
    finally:
        for process, line in crew:
            line.close()
            process.terminate()
            process.join()


def _work(line: Connection, work: _Work) -> None:
    gc.disable()
    sources, shown, wanted = work
    desk = Desk(shown)
    read = desk.read(sources)
    line.send_bytes(pickle.dumps(read, pickle.HIGHEST_PROTOCOL))
    others = [pickle.loads(data) for data in line.recv()]
    line.send_bytes(pickle.dumps(desk.look([read, *others], wanted), pickle.HIGHEST_PROTOCOL))


@contextmanager
def _no_collections() -> Iterator[None]:
    """Parsing makes millions of objects and no cycles worth finding: collecting would take half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _dealt(sources: Sequence[Source], count: int) -> list[tuple[Source, ...]]:
    """Parts of about the same size: large files first, each to the lightest part."""
    parts: list[tuple[int, list[Source]]] = [(0, []) for _ in range(count)]
    for source in sorted(sources, key=_size, reverse=True):
        lightest = min(range(count), key=lambda number: parts[number][0])
        weight, held = parts[lightest]
        held.append(source)
        parts[lightest] = (weight + _size(source), held)
    return [tuple(held) for _, held in parts if held]


def _size(source: Source) -> int:
    try:
        return Path(source.path).stat().st_size if source.text is None else len(source.text)
    except OSError:
        return 0
