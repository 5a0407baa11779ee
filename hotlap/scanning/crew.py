"""A scan: read every file, work out how hot each function is across all of them, then run the rules.

Every core reads a share of the files, receives the summaries of the others, and runs the rules on its own share. It
keeps the trees it has parsed, so that each file is parsed once, as long as they fit into memory.
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
from hotlap.analysis.parse.files import ParsedFile, Source, is_test
from hotlap.analysis.parse.words import Words
from hotlap.machine import usable_cores
from hotlap.records.scan_finding import Scan, ScanFinding, Unread
from hotlap.scanning.cells import in_cells
from hotlap.scanning.file_scan import FindingFilter, State, look, our_bug

_MIN_PARALLEL_BYTES = 300_000  # bytes; below this, starting processes costs more than it saves
_MAX_TREE_BYTES = 6_000_000  # bytes of source kept as trees, some 750 MB; files beyond that are parsed again
_Work = tuple[tuple[Source, ...], frozenset[str], FindingFilter]


@dataclass(frozen=True)
class _Read:
    """The result of reading the files of one process."""

    summaries: tuple[Summary, ...]
    unread: tuple[Unread, ...]
    lines: int


_Result = tuple[list[_Read], list[ScanFinding | Unread]]


def scan(
    sources: Sequence[Source], finding_filter: FindingFilter, context: Sequence[Source] = (), cores: int | None = None
) -> Scan:
    """Return the findings in the sources. The context is read for how it uses them, but nothing in it is reported."""
    all_sources, shown = [*sources, *context], frozenset(source.path for source in sources)
    cores = cores or usable_cores()
    if cores == 1 or sum(map(_size, all_sources)) < _MIN_PARALLEL_BYTES:
        read, found = _scan_in_this_process(all_sources, shown, finding_filter)
    else:
        read, found = _scan_in_processes(_shares(all_sources, cores), shown, finding_filter)
    unread = [unreadable for portion in read for unreadable in portion.unread if unreadable.path in shown]
    unread += [unreadable for unreadable in found if isinstance(unreadable, Unread)]
    findings = [finding for finding in found if isinstance(finding, ScanFinding)]
    findings.sort(key=lambda finding: (finding.path, finding.line, finding.column, finding.code))
    findings = in_cells(findings)
    return Scan(tuple(findings), tuple(unread), len(sources), sum(portion.lines for portion in read))


def _scan_in_this_process(sources: Sequence[Source], shown: frozenset[str], finding_filter: FindingFilter) -> _Result:
    with _no_collections():
        return _scanned(sources, shown, finding_filter)


def _scanned(sources: Sequence[Source], shown: frozenset[str], finding_filter: FindingFilter) -> _Result:
    """Scan all sources. The trees go with this frame, so that no collection looks for cycles in them."""
    desk = Desk(shown)
    read = desk.read(sources)
    return [read], desk.look([read], finding_filter)


class Desk:
    """The files that one process reads and runs the rules on, with the trees it has parsed."""

    def __init__(self, shown: frozenset[str]) -> None:
        self.shown = shown
        self.parsed: dict[str, tuple[ParsedFile, flow.FileReader]] = {}
        self.sources: dict[str, Source] = {}
        self.room = _MAX_TREE_BYTES

    def read(self, sources: Iterable[Source]) -> _Read:
        summaries, unread, lines = [], [], 0
        for source in sorted(sources, key=lambda source: is_test(source.path)):  # least is looked for in tests
            parsed = files.read(source)
            if isinstance(parsed, Unread):
                unread.append(parsed)
                continue
            lines += parsed.text.count("\n")
            try:
                summaries.append(self._summary(parsed))
            except RecursionError:
                unread.append(Unread(source.path, "is nested too deeply to be analysed"))
            except Exception as error:  # noqa: BLE001 our bug in one file must not hide the others
                unread.append(our_bug(source, error))
        return _Read(tuple(summaries), tuple(unread), lines)

    def _summary(self, parsed: ParsedFile) -> Summary:
        source = parsed.source
        arguments = (parsed.tree, source.path, source.module, parsed.text, source.package)
        if source.path not in self.shown:
            return flow.read(*arguments)
        self.sources[source.path] = source
        if len(parsed.text) > self.room:
            return flow.read(*arguments)
        self.room -= len(parsed.text)
        reader = flow.read_closely(*arguments)
        self.parsed[source.path] = (parsed, reader)
        return reader.summary

    def look(self, read: Iterable[_Read], finding_filter: FindingFilter) -> list[ScanFinding | Unread]:
        """Run the rules on the files that this process has read."""
        summaries = sorted(
            (summary for portion in read for summary in portion.summaries), key=lambda summary: summary.path
        )
        state = State(Hotness(Project(summaries)), finding_filter)
        found: list[ScanFinding | Unread] = []
        for path, source in self.sources.items():
            try:
                found += self._look_at(path, source, state)
            except RecursionError:
                found.append(Unread(path, "is nested too deeply to be analysed"))
            except Exception as error:  # noqa: BLE001 our bug in one file must not hide the others
                found.append(our_bug(source, error))
        return found

    def _look_at(self, path: str, source: Source, state: State) -> list[ScanFinding | Unread]:
        if path not in state.hotness.project.files:
            return []
        if path in self.parsed:
            parsed, reader = self.parsed.pop(path)
            return look(parsed, state, reader)
        text = files.load(source)
        if not isinstance(text, str) or not state.rules_for(Words(text), path):
            return []  # no rule applies: parsing it again would be wasted
        again = files.parse(source, text)
        return look(again, state) if isinstance(again, ParsedFile) else []


def _scan_in_processes(
    shares: Sequence[tuple[Source, ...]], shown: frozenset[str], finding_filter: FindingFilter
) -> _Result:
    """Scan each share in its own process. What one has read goes to the others as the bytes it sent."""
    forks = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    workers: list[tuple[BaseProcess, Connection]] = []
    try:
        for share in shares:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, (share, shown, finding_filter)), daemon=True)
            process.start()
            theirs.close()
            workers.append((process, ours))
        read = [connection.recv_bytes() for _, connection in workers]
        for number, (_, connection) in enumerate(workers):
            connection.send([data for sender, data in enumerate(read) if sender != number])
        found = [result for _, connection in workers for result in pickle.loads(connection.recv_bytes())]
        return [pickle.loads(data) for data in read], found
    except (EOFError, OSError):  # a process was killed, perhaps for its memory: scan it all in this one
        return _scan_in_this_process([source for share in shares for source in share], shown, finding_filter)
    finally:
        for process, connection in workers:
            connection.close()
            process.terminate()
            process.join()


def _work(connection: Connection, work: _Work) -> None:
    gc.disable()
    sources, shown, finding_filter = work
    desk = Desk(shown)
    read = desk.read(sources)
    connection.send_bytes(pickle.dumps(read, pickle.HIGHEST_PROTOCOL))
    others = [pickle.loads(data) for data in connection.recv()]
    connection.send_bytes(pickle.dumps(desk.look([read, *others], finding_filter), pickle.HIGHEST_PROTOCOL))


@contextmanager
def _no_collections() -> Iterator[None]:
    """Parsing makes millions of objects and no cycles worth finding: collections would take half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _shares(sources: Sequence[Source], count: int) -> list[tuple[Source, ...]]:
    """Split the sources into shares of about the same size: large files first, each to the smallest share."""
    shares: list[tuple[int, list[Source]]] = [(0, []) for _ in range(count)]
    for source in sorted(sources, key=_size, reverse=True):
        lightest = min(range(count), key=lambda number: shares[number][0])
        weight, members = shares[lightest]
        members.append(source)
        shares[lightest] = (weight + _size(source), members)
    return [tuple(members) for _, members in shares if members]


def _size(source: Source) -> int:
    try:
        return Path(source.path).stat().st_size if source.text is None else len(source.text)
    except OSError:
        return 0
