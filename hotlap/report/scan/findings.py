"""The findings of a scan as text, Markdown, JSON and GitHub annotations. SARIF is in sarif.py."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hotlap.records.codec import to_json
from hotlap.records.scan_finding import Applicability, Scan, ScanFinding

_FIXES = {
    Applicability.SAFE.value: "--fix repairs it",
    Applicability.UNSAFE.value: "--fix --unsafe repairs it",
    Applicability.DISPLAY_ONLY.value: "",
}


def text(scan: Scan) -> str:
    lines: list[str] = []
    for finding in scan.findings:
        lines.append(f"{where(finding)}:{finding.column} {finding.code} {finding.name}: {finding.message}")
        chain = " → ".join(f"{step.path}:{step.line} {step.text}" for step in finding.why)
        lines.append(f"    {finding.frequency}{f': {chain}' if chain else ''} ({finding.confidence} confidence)")
        fix = _FIXES[finding.applicability]
        lines.append(f"    {finding.repair}{f' ({fix})' if fix else ''}")
    lines.append(_ending(scan))
    return "\n".join(lines) + "\n"


def where(one: ScanFinding) -> str:
    return f"{one.path}:cell {one.cell}:{one.line}" if one.cell else f"{one.path}:{one.line}"


def _ending(scan: Scan) -> str:
    count = len(scan.findings)
    known = f" {_number(scan.known, 'finding')} of the baseline not shown." if scan.known else ""
    if not count:
        return f"Nothing {'new ' if scan.known else ''}found in {_number(scan.files, 'file')}.{known}"
    safe = sum(finding.applicability == Applicability.SAFE.value for finding in scan.findings)
    unsafe = sum(finding.applicability == Applicability.UNSAFE.value for finding in scan.findings)
    repaired = [f"{safe} by --fix"] * bool(safe) + [f"{unsafe} more by --fix --unsafe"] * bool(unsafe)
    ways = f" Repaired are {', '.join(repaired)}." if repaired else ""
    return f"{_number(count, 'finding')} in {_number(scan.files, 'file')}.{ways}{known}"


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
    rows = ["| where | what | how often | what to do |", "|---|---|---|---|"]
    for finding in scan.findings:
        rows.append(
            f"| `{where(finding)}` | {finding.code} {finding.name}: {_cell(finding.message)} | {finding.frequency} | "
            f"{_cell(finding.repair)} |"
        )
    return "\n".join([*rows, "", _ending(scan)] if scan.findings else [_ending(scan)]) + "\n"


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")


def as_json(scan: Scan) -> str:
    return to_json(scan)


def github(scan: Scan) -> str:
    """Workflow commands that GitHub shows beside the lines."""
    lines = []
    for finding in scan.findings:
        place = f"file={_property(finding.path)},line={finding.line},endLine={finding.last_line},col={finding.column}"
        if finding.line == finding.end_line:
            place += f",endColumn={finding.end_column}"
        title = _property(f"{finding.code} {finding.name}")
        lines.append(f"::warning {place},title={title}::{_data(f'{finding.message}; {finding.repair}')}")
    return "".join(f"{line}\n" for line in lines)


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")


FORMATS = ("text", "json", "sarif", "github", "markdown")


def without(scan: Scan, kept: Iterable[ScanFinding]) -> Scan:
    """Only the findings that a baseline does not know."""
    left = tuple(kept)
    return replace(scan, findings=left, known=scan.known + len(scan.findings) - len(left))
