"""A scan: read every file, see how hot each function is across all of them, then let the rules look.

Reading and looking are spread over the cores; only the step between them needs all files at once.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from hotlap.catalog import patterns
from hotlap.model.scanned import Confidence, Scan, Scanned, Unread
from hotlap.source import files, flow
from hotlap.source.code import Code
from hotlap.source.facts import Summary
from hotlap.source.files import Parsed, Source
from hotlap.source.hotness import Hotness
from hotlap.source.positions import characters
from hotlap.source.project import Project
from hotlap.source.rule import Found, Rule

_ALONE = 300_000  # bytes; below it starting processes costs more than they save
_MOST_MAYBES = 3  # conditions that may hold rarely; behind more of them nobody can tell
_IGNORE = re.compile(r"#\s*hotlap:\s*ignore(?:\[(?P<codes>[^\]]*)\])?", re.IGNORECASE)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Wanted:
    """Which findings are asked for."""

    select: tuple[str, ...] = ()  # codes, names, or the beginning of a code; none: all
    ignore: tuple[str, ...] = ()
    pedantic: bool = False

    def rules(self) -> list[Rule]:
        every = patterns.rules().values()
        chosen = [one for one in every if not self.select or _named(one, self.select)]
        return [one for one in chosen if not _named(one, self.ignore)]


def _named(rule: Rule, texts: tuple[str, ...]) -> bool:
    return any(
        rule.code.startswith(text.upper()) or rule.name == text.lower().replace("_", "-") for text in texts if text
    )


@dataclass(frozen=True)
class _Read:
    """What one process read."""

    summaries: tuple[Summary, ...]
    unread: tuple[Unread, ...]
    lines: int


def scan(sources: Sequence[Source], wanted: Wanted, context: Sequence[Source] = (), cores: int | None = None) -> Scan:
    """Findings in the sources. The context is read for what it says about them, and not reported on."""
    cores = cores or _cores()
    every = [*sources, *context]
    with _no_collections():
        parts = _spread(_read_all, every, None, cores)
        read = [summary for part in parts for summary in part.summaries]
        shown = {one.path for one in sources}
        state = _State(Hotness(Project(read)), wanted)
        looked = [source for source in sources if source.path in state.hotness.project.files]
        found = _spread(_look_all, looked, state, cores)
    unread = [one for part in parts for one in part.unread if one.path in shown]
    unread += [one for part in found for one in part if isinstance(one, Unread)]
    findings = [one for part in found for one in part if isinstance(one, Scanned)]
    findings.sort(key=lambda one: (one.path, one.line, one.column, one.code))
    return Scan(tuple(findings), tuple(unread), len(sources), sum(part.lines for part in parts))


def scan_text(text: str, wanted: Wanted, path: str = "train.py") -> Scan:
    """The same for one program in memory."""
    source = Source(path, path.removesuffix(".py"), False)
    parsed = files.parse(source, text)
    if isinstance(parsed, Unread):
        return Scan((), (parsed,), 1)
    summary = flow.read(parsed.tree, path, source.module, text)
    found = look(parsed, _State(Hotness(Project([summary])), wanted))
    return Scan(tuple(sorted(found, key=lambda one: (one.line, one.column, one.code))), (), 1, text.count("\n"))


@dataclass(frozen=True)
class _State:
    """What every process that looks must know."""

    hotness: Hotness
    wanted: Wanted

    @cached_property
    def rules(self) -> list[Rule]:
        return self.wanted.rules()

    def __reduce__(self) -> tuple[Any, ...]:
        return _State, (self.hotness, self.wanted)  # each process loads the rules by itself


def _read_all(sources: Sequence[Source], _: Any) -> _Read:
    summaries, unread, lines = [], [], 0
    for source in sources:
        parsed = files.read(source)
        if isinstance(parsed, Unread):
            unread.append(parsed)
            continue
        lines += parsed.text.count("\n")
        try:
            summaries.append(flow.read(parsed.tree, source.path, source.module, parsed.text, source.package))
        except RecursionError:
            unread.append(Unread(source.path, "is nested too deep to be followed"))
        except Exception as error:  # noqa: BLE001 our bug in one file must not hide the others
            unread.append(_our_bug(source, error))
    return _Read(tuple(summaries), tuple(unread), lines)


def _our_bug(source: Source, error: Exception) -> Unread:
    """A file that the scanner fails on is reported like one that cannot be read; in our own tests it raises."""
    if "PYTEST_CURRENT_TEST" in os.environ or "HOTLAP_STRICT" in os.environ:
        raise error
    return Unread(source.path, f"a bug of hotlap, please report it: {type(error).__name__}: {error}")


def _look_all(sources: Sequence[Source], state: _State) -> list[Scanned | Unread]:
    found: list[Scanned | Unread] = []
    for source in sources:
        text = files.load(source)
        if not isinstance(text, str) or not _rules_for(text, source.path, state):
            continue  # parsing it again would be for nothing
        parsed = files.parse(source, text)
        try:
            found += look(parsed, state) if isinstance(parsed, Parsed) else []
        except Exception as error:  # noqa: BLE001 our bug in one file must not hide the others
            found.append(_our_bug(source, error))
    return found


def _rules_for(text: str, path: str, state: _State) -> list[Rule]:
    """The rules that may find something in a file."""
    hot = state.hotness.is_hot(path)
    return [rule for rule in state.rules if (hot or not rule.only_hot) and any(word in text for word in rule.words)]


def look(parsed: Parsed, state: _State) -> list[Scanned]:
    """The findings of all rules in one file."""
    rules = _rules_for(parsed.text, parsed.source.path, state)
    if not rules:
        return []
    code = Code(parsed.source.path, parsed.text, parsed.tree, state.hotness)
    found = {}
    for rule in rules:
        for one in rule.find(code):
            made = _scanned(rule, one, code)
            if _is_wanted(made, code, state.wanted):
                found[(made.code, made.line, made.column)] = made
    return list(found.values())


def _is_wanted(one: Scanned, code: Code, wanted: Wanted) -> bool:
    if one.confidence == Confidence.LOW.value and not wanted.pedantic:
        return False
    return not any(
        _ignored(code.lines[number - 1], one) for number in {one.line, one.end_line} if number <= len(code.lines)
    )


def _ignored(line: str, one: Scanned) -> bool:
    mark = _IGNORE.search(line)
    if mark is None:
        return False
    if mark["codes"] is None:
        return True
    return bool({text.strip().lower() for text in mark["codes"].split(",")} & {one.code.lower(), one.name})


def _scanned(rule: Rule, found: Found, code: Code) -> Scanned:
    heat = found.heat or code.heat(found.node)
    node: Any = found.node
    confidence = min((found.confidence or heat.confidence, heat.confidence), key=lambda one: one.rank)
    if heat.maybes > _MOST_MAYBES:
        confidence = Confidence.LOW
    return Scanned(
        rule.code, rule.name, code.path, node.lineno, characters(code.lines, node.lineno, node.col_offset) + 1,
        node.end_lineno, characters(code.lines, node.end_lineno, node.end_col_offset) + 1, found.message, found.repair,
        heat.frequency.value, confidence.value, found.applicability.value, heat.why,
        code.lines[node.lineno - 1].strip(), found.hints,
    )  # fmt: skip


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


_shared: Any = None  # what a forked process inherits


def _start(state: Any) -> None:
    global _shared
    _shared = state
    gc.disable()


def _call(work: Callable[[Sequence[Source], Any], Result], part: Sequence[Source]) -> Result:
    return work(part, _shared)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _spread(
    work: Callable[[Sequence[Source], Any], Result], sources: Sequence[Source], state: Any, cores: int
) -> list[Result]:
    """The work done on every source, by all cores where there is enough of it."""
    if cores == 1 or sum(_size(one) for one in sources) < _ALONE:
        return [work(sources, state)]
    forks = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
    context = multiprocessing.get_context("fork" if forks else "spawn")
    with ProcessPoolExecutor(cores, mp_context=context, initializer=_start, initargs=(state,)) as pool:
        return [one.result() for one in [pool.submit(_call, work, part) for part in _dealt(sources, cores * 4)]]


def _dealt(sources: Sequence[Source], count: int) -> Iterable[Sequence[Source]]:
    """Parts of about the same size: large files first, each to the lightest part."""
    parts: list[tuple[int, list[Source]]] = [(0, []) for _ in range(count)]
    for source in sorted(sources, key=_size, reverse=True):
        lightest = min(range(count), key=lambda number: parts[number][0])
        weight, held = parts[lightest]
        parts[lightest] = (weight + _size(source), [*held, source])
    return [held for _, held in parts if held]


def _size(source: Source) -> int:
    try:
        return Path(source.path).stat().st_size if source.text is None else len(source.text)
    except OSError:
        return 0
