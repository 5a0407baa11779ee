"""The findings of a scan as text, Markdown, JSON and GitHub annotations. SARIF is in sarif.py."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hotlap.records.codec import to_json
from hotlap.records.scan_finding import Applicability, Scan, ScanFinding

_FIXES = {
    Applicability.SAFE: "--fix repairs it",
    Applicability.UNSAFE: "--fix --unsafe repairs it",
    Applicability.DISPLAY_ONLY: "",
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


def where(finding: ScanFinding) -> str:
    return f"{finding.path}:cell {finding.cell}:{finding.line}" if finding.cell else f"{finding.path}:{finding.line}"


def _ending(scan: Scan) -> str:
    count = len(scan.findings)
    known = f" {_number(scan.known, 'finding')} hidden by the baseline." if scan.known else ""
    if not count:
        return f"Nothing {'new ' if scan.known else ''}found in {_number(scan.files, 'file')}.{known}"
    safe = sum(finding.applicability == Applicability.SAFE for finding in scan.findings)
    unsafe = sum(finding.applicability == Applicability.UNSAFE for finding in scan.findings)
    repairable = [f"{safe} by --fix"] * bool(safe) + [f"{unsafe} more by --fix --unsafe"] * bool(unsafe)
    ways = f" Repairable: {', '.join(repairable)}." if repairable else ""
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
    """Return workflow commands, which GitHub shows as annotations beside the lines."""
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


def without(scan: Scan, unknown: Iterable[ScanFinding]) -> Scan:
    """Keep only the findings that the baseline does not list, and count the others as known."""
    left = tuple(unknown)
    return replace(scan, findings=left, known=scan.known + len(scan.findings) - len(left))
