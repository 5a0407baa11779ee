"""Run all rules on one file, once it is known how hot each function is across all files."""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass
from typing import Any

from hotlap.analysis.frequency.hotness import Hotness
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse import files, flow
from hotlap.analysis.parse.files import ParsedFile, Source, is_test
from hotlap.analysis.parse.positions import characters
from hotlap.analysis.parse.words import Words, cores
from hotlap.analysis.queries.code import Code
from hotlap.analysis.queries.rule import Found, Rule
from hotlap.catalog import patterns
from hotlap.records.scan_finding import Confidence, Frequency, Scan, ScanFinding, Severity, Unread

_MOST_MAYBES = 3  # conditions that may rarely hold; behind more of them the frequency is a guess
_BLOCKS = (
    ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.If, ast.Try, ast.FunctionDef, ast.AsyncFunctionDef,
    ast.ClassDef,
)  # fmt: skip
_IGNORE = re.compile(r"#\s*hotlap:\s*ignore(?:\[(?P<codes>[^\]]*)\])?", re.IGNORECASE)


@dataclass(frozen=True)
class FindingFilter:
    """Which findings are requested."""

    select: tuple[str, ...] = ()  # codes, names, or the beginning of a code; empty: all rules
    ignore: tuple[str, ...] = ()
    pedantic: bool = False
    preview: bool = False

    def rules(self) -> list[Rule]:
        available = patterns.rules().values()
        chosen = [rule for rule in available if not self.select or _is_named(rule, self.select)]
        return [rule for rule in chosen if not _is_named(rule, self.ignore) and self._is_on(rule)]

    def _is_on(self, rule: Rule) -> bool:
        return self.preview or not rule.preview or any(_is_itself(rule, text) for text in self.select)


def _is_named(rule: Rule, texts: tuple[str, ...]) -> bool:
    return any(rule.code.startswith(text.upper()) or _is_itself(rule, text) for text in texts if text)


def _is_itself(rule: Rule, text: str) -> bool:
    return rule.code == text.upper() or rule.name == text.lower().replace("_", "-")


def scan_text(text: str, finding_filter: FindingFilter, path: str = "train.py") -> Scan:
    """Scan one program in memory."""
    source = Source(path, path.removesuffix(".py"), False)
    parsed = files.parse(source, text)
    if isinstance(parsed, Unread):
        return Scan((), (parsed,), 1)
    reader = flow.read_closely(parsed.tree, path, source.module, text)
    found = look(parsed, State(Hotness(Project([reader.summary])), finding_filter), reader)
    findings = [finding for finding in found if isinstance(finding, ScanFinding)]
    findings.sort(key=lambda finding: (finding.line, finding.column, finding.code))
    return Scan(
        tuple(findings),
        tuple(unreadable for unreadable in found if isinstance(unreadable, Unread)),
        1,
        text.count("\n"),
    )


class State:
    """What the rules need to know about all files to judge one of them."""

    def __init__(self, hotness: Hotness, finding_filter: FindingFilter) -> None:
        self.hotness, self.wanted = hotness, finding_filter
        self.rules = finding_filter.rules()
        self._choices: dict[tuple[bool, bool], tuple[list[Rule], dict[str, bytes]]] = {}

    def rules_for(self, words: Words, path: str) -> list[Rule]:
        """Return the rules that may find something in this file, judging by the words it contains."""
        rules, sought = self._choice(self.hotness.is_hot(path), is_test(path))
        present = set(words.present(sought, words.text))  # many rules look for the same words
        return [rule for rule in rules if not present.isdisjoint(rule.words)]

    def _choice(self, hot: bool, tests: bool) -> tuple[list[Rule], dict[str, bytes]]:
        """Return the rules for such files, and the words they look for."""
        known = self._choices.get((hot, tests))
        if known is None:
            rules = [rule for rule in self.rules if (hot or not rule.only_hot) and (rule.tests or not tests)]
            known = self._choices[hot, tests] = rules, cores(word for rule in rules for word in rule.words)
        return known


def our_bug(source: Source, error: Exception, where: str = "") -> Unread:
    """Report a file that the scanner fails on like one that cannot be read; in our own tests, raise."""
    if "PYTEST_CURRENT_TEST" in os.environ or "HOTLAP_STRICT" in os.environ:
        raise error
    reason = f"{where}a bug in hotlap, please report it: {type(error).__name__}: {error}"
    return Unread(source.path, reason, whole=not where)


def look(parsed: ParsedFile, state: State, reader: flow.FileReader | None = None) -> list[ScanFinding | Unread]:
    """Return the findings of all rules in one file. A rule that fails is reported and does not hide the others."""
    words = reader.words if reader is not None else Words(parsed.text)
    rules = state.rules_for(words, parsed.source.path)
    if not rules:
        return []
    code = Code(parsed.source.path, parsed.text, parsed.tree, state.hotness, reader)
    found: dict[tuple[str, int, int], ScanFinding | Unread] = {}
    for rule in rules:
        try:
            for hit in rule.find(code):
                finding = _scan_finding(rule, hit, code)
                if _is_wanted(finding, code, state.wanted):
                    found[(finding.code, finding.line, finding.column)] = finding
        except Exception as error:  # noqa: BLE001
            found[(rule.code, 0, 0)] = our_bug(parsed.source, error, f"{rule.code}: ")
    return list(found.values())


def _is_wanted(finding: ScanFinding, code: Code, finding_filter: FindingFilter) -> bool:
    if finding.confidence == Confidence.LOW and not finding_filter.pedantic:
        return False
    ends = {finding.line, finding.last_line}
    return not any(_is_ignored(code.lines[number - 1], finding) for number in ends if number <= len(code.lines))


def _is_ignored(line: str, finding: ScanFinding) -> bool:
    mark = _IGNORE.search(line)
    if mark is None:
        return False
    if mark["codes"] is None:
        return True
    return bool({text.strip().lower() for text in mark["codes"].split(",")} & {finding.code.lower(), finding.name})


def _scan_finding(rule: Rule, found: Found, code: Code) -> ScanFinding:
    heat = found.heat or code.heat(found.node)
    node: Any = found.node
    confidence = min((found.confidence or heat.confidence, heat.confidence), key=lambda level: level.rank)
    if heat.maybes > _MOST_MAYBES:
        confidence = Confidence.LOW
    return ScanFinding(
        rule.code, rule.name, code.path, node.lineno, characters(code.lines, node.lineno, node.col_offset) + 1,
        node.end_lineno, characters(code.lines, node.end_lineno, node.end_col_offset) + 1, found.message, found.repair,
        heat.often, confidence, found.applicability, heat.why,
        code.lines[node.lineno - 1].strip(), found.hints, isinstance(node, _BLOCKS),
        severity=_severity(rule.severity, heat.frequency, confidence),
        runs_itself=found.heat is None or heat == code.heat(found.node),
    )  # fmt: skip


def _severity(usual: Severity, frequency: Frequency, confidence: Confidence) -> Severity:
    """Return the severity of one finding: less where the line seldom runs, or nobody can be sure."""
    if confidence is Confidence.LOW:
        return Severity.LOW
    seldom = frequency.rank < Frequency.BATCH.rank
    return {Severity.HIGH: Severity.MEDIUM}.get(usual, Severity.LOW) if seldom else usual
