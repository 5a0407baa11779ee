"""The findings of a scan as text, Markdown, JSON and GitHub annotations. SARIF is in sarif.py."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hotlap.records.codec import to_json
from hotlap.records.scan_finding import Applicability, Scan, ScanFinding, Severity

_FIXES = {
    Applicability.SAFE: "fixable with --fix",
    Applicability.UNSAFE: "fixable with --fix --unsafe",
    Applicability.DISPLAY_ONLY: "",
}


UNIT = re.compile(r"(?<=\d) (?=[%a-zµ])")  # between a number and what it counts
GLUE = "\ue000"


def text(scan: Scan, width: int | None = None) -> str:
    """Return the findings, with lines of at most `width` characters where words allow it."""
    lines = [scan.profile] if scan.profile else []
    for group in _by_cause(scan.findings):
        first = group[0]
        places = f", {len(group)} places" if len(group) > 1 else ""
        lines.append(f"{first.code} {first.name} ({first.severity} severity{places}): {first.repair}")
        for finding in group:
            fix = _FIXES[finding.applicability]
            lines.append(f"  {where(finding)}:{finding.column} {finding.message}{f' ({fix})' if fix else ''}")
            lines += [f"    {words}" for words in (_measurement(finding), _reason(finding)) if words]
    lines.append(_ending(scan))
    return "".join(f"{line}\n" for line in (_wrapped(lines, width) if width else lines))


def _wrapped(lines: Iterable[str], width: int) -> Iterator[str]:
    """Break lines between words, and indent what follows below what it continues."""
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()))
        glued = UNIT.sub(GLUE, line)
        pieces = textwrap.wrap(
            glued, width, subsequent_indent=f"{indent}    ", break_long_words=False, break_on_hyphens=False
        )
        yield "\n".join(pieces).replace(GLUE, " ")


def _by_cause(findings: Iterable[ScanFinding]) -> list[list[ScanFinding]]:
    """Group findings that have the same remedy: the most costly as measured first, what did not run last."""
    groups: dict[tuple[str, str], list[ScanFinding]] = {}
    for finding in findings:
        groups.setdefault((finding.code, finding.repair), []).append(finding)
    for group in groups.values():
        group.sort(key=lambda finding: -(finding.ms_per_step or 0.0))
    return sorted(groups.values(), key=_cost, reverse=True)


def _cost(group: Sequence[ScanFinding]) -> tuple[bool, float, int, int, int]:
    measured = max(finding.ms_per_step or 0.0 for finding in group)
    severity = max(finding.severity.rank for finding in group)
    frequency = max(finding.frequency.rank for finding in group)
    return any(finding.ran is not False for finding in group), measured, severity, frequency, len(group)


def _measurement(finding: ScanFinding) -> str:
    """Return what a profile says of the finding, if one is at hand."""
    if finding.ms_per_step is not None:
        return finding.measured
    return "did not run in the steps followed" if finding.ran is False else ""


def _reason(finding: ScanFinding) -> str:
    """Return how often the line runs and the two ends of the chain of calls that leads there."""
    steps = [f"{step.path}:{step.line} {step.text}" for step in finding.why]
    left_out = len(steps) - 2
    if left_out > 0:
        steps[1:-1] = [f"{left_out} call{'' if left_out == 1 else 's'} between"]
    chain = f": {' → '.join(steps)}" if steps else ""
    return f"{finding.frequency}{chain} ({finding.confidence} confidence)"


def where(finding: ScanFinding) -> str:
    return f"{finding.path}:cell {finding.cell}:{finding.line}" if finding.cell else f"{finding.path}:{finding.line}"


def _ending(scan: Scan) -> str:
    count = len(scan.findings)
    known = f" {_number(scan.known, 'finding')} hidden by the baseline." if scan.known else ""
    failed = f" {_number(scan.failed, 'file')} could not be read." if scan.failed else ""
    if not scan.read and scan.unread:
        return f"Nothing was scanned.{failed}"
    if not count:
        return f"Nothing {'new ' if scan.known else ''}found in {_number(scan.read, 'file')}.{failed}{known}"
    safe = sum(finding.applicability == Applicability.SAFE for finding in scan.findings)
    unsafe = sum(finding.applicability == Applicability.UNSAFE for finding in scan.findings)
    more = "more " if safe else ""
    ways = [f"{safe} fixable with --fix"] * bool(safe) + [f"{unsafe} {more}fixable with --fix --unsafe"] * bool(unsafe)
    fixable = f"; {', '.join(ways)}" if ways else ""
    return f"{_number(count, 'finding')} in {_number(scan.read, 'file')}{fixable}.{failed}{known}"


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def statistics(scan: Scan, as_json: bool = False) -> str:
    counted = Counter((finding.code, finding.name) for finding in scan.findings)
    if as_json:
        counts = [{"code": code, "name": name, "count": count} for (code, name), count in counted.most_common()]
        return json.dumps(counts, indent=1) + "\n"
    rows = [f"{count:6}  {code}  {name}" for (code, name), count in counted.most_common()]
    return "\n".join([*rows, _ending(scan)]) + "\n"


def markdown(scan: Scan) -> str:
    measured = bool(scan.profile)
    columns = ["where", "what", "how often", *["measured"] * measured, "what to do"]
    rows = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for finding in (member for group in _by_cause(scan.findings) for member in group):
        what = f"{finding.code} {finding.name}: {finding.message}"
        cells = [what, finding.frequency, *[_measurement(finding)] * measured, finding.repair]
        rows.append(f"| `{where(finding)}` | {' | '.join(map(_cell, cells))} |")
    rows = [scan.profile, "", *rows] if measured else rows
    return "\n".join([*rows, "", _ending(scan)] if scan.findings else [_ending(scan)]) + "\n"


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")


def as_json(scan: Scan) -> str:
    return to_json(scan)


def github(scan: Scan) -> str:
    """Return workflow commands, which GitHub shows as annotations beside the lines."""
    lines = []
    for finding in scan.findings:
        place = f"file={_property(finding.path)},"
        place += (
            f"line={finding.file_line}" if finding.cell
            else f"line={finding.line},endLine={finding.last_line},col={finding.column}"
        )  # fmt: skip
        if finding.line == finding.end_line and not finding.cell:
            place += f",endColumn={finding.end_column}"
        title = _property(f"{finding.code} {finding.name}")
        level = "notice" if finding.severity is Severity.LOW else "warning"
        lines.append(f"::{level} {place},title={title}::{_data(f'{finding.message}; {finding.repair}')}")
    return "".join(f"{line}\n" for line in lines)


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")


FORMATS = ("text", "json", "sarif", "github", "markdown")


def without(scan: Scan, unknown: Iterable[ScanFinding]) -> Scan:
    """Keep only the findings that the baseline does not list, and count the others as known."""
    left = tuple(unknown)
    return replace(scan, findings=left, known=scan.known + len(scan.findings) - len(left))
