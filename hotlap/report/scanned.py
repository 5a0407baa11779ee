"""The findings of a scan as text, Markdown, JSON, SARIF 2.1.0 and GitHub annotations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from hotlap.model.codec import to_json
from hotlap.model.scanned import Applicability, Confidence, Scan, Scanned

SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_FIXES = {
    Applicability.SAFE.value: "--fix repairs it",
    Applicability.UNSAFE.value: "--fix --unsafe repairs it",
    Applicability.DISPLAY_ONLY.value: "",
}


def text(scan: Scan) -> str:
    lines: list[str] = []
    for one in scan.findings:
        lines.append(f"{one.path}:{one.line}:{one.column} {one.code} {one.name}: {one.message}")
        chain = " → ".join(f"{step.path}:{step.line} {step.text}" for step in one.why)
        lines.append(f"    {one.frequency}{f': {chain}' if chain else ''} ({one.confidence} confidence)")
        fix = _FIXES[one.applicability]
        lines.append(f"    {one.repair}{f' ({fix})' if fix else ''}")
    lines.append(_ending(scan))
    return "\n".join(lines) + "\n"


def _ending(scan: Scan) -> str:
    count = len(scan.findings)
    if not count:
        return f"Nothing found in {_number(scan.files, 'file')}."
    safe = sum(one.applicability == Applicability.SAFE.value for one in scan.findings)
    unsafe = sum(one.applicability == Applicability.UNSAFE.value for one in scan.findings)
    repaired = [f"{safe} by --fix"] * bool(safe) + [f"{unsafe} more by --fix --unsafe"] * bool(unsafe)
    ways = f" Repaired are {', '.join(repaired)}." if repaired else ""
    return f"{_number(count, 'finding')} in {_number(scan.files, 'file')}.{ways}"


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def statistics(scan: Scan) -> str:
    counted = Counter((one.code, one.name) for one in scan.findings)
    rows = [f"{count:6}  {code}  {name}" for (code, name), count in counted.most_common()]
    return "\n".join([*rows, _ending(scan)]) + "\n"


def markdown(scan: Scan) -> str:
    rows = ["| where | what | how often | what to do |", "|---|---|---|---|"]
    for one in scan.findings:
        where = f"`{one.path}:{one.line}`"
        rows.append(
            f"| {where} | {one.code} {one.name}: {_cell(one.message)} | {one.frequency} | {_cell(one.repair)} |"
        )
    return "\n".join([*rows, "", _ending(scan)] if scan.findings else [_ending(scan)]) + "\n"


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")


def as_json(scan: Scan) -> str:
    return to_json(scan)


def github(scan: Scan) -> str:
    """Workflow commands that GitHub shows beside the lines."""
    lines = []
    for one in scan.findings:
        where = f"file={_property(one.path)},line={one.line},endLine={one.end_line},col={one.column}"
        if one.line == one.end_line:
            where += f",endColumn={one.end_column}"
        title = _property(f"{one.code} {one.name}")
        lines.append(f"::warning {where},title={title}::{_data(f'{one.message}; {one.repair}')}")
    return "".join(f"{line}\n" for line in lines)


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")


def sarif(scan: Scan, titles: Mapping[str, tuple[str, str, str]], version: str) -> str:
    """SARIF 2.1.0, of which GitHub's code scanning shows a part. `titles`: code → name, title, page."""
    codes = sorted(titles)
    rules = [_rule(code, *titles[code]) for code in codes]
    driver = {
        "name": "hotlap", "version": version, "semanticVersion": version,
        "informationUri": "https://pypi.org/project/hotlap/", "rules": rules,
    }  # fmt: skip
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(one, codes.index(one.code)) for one in scan.findings],
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": _notes(scan)}],
    }
    return json.dumps({"$schema": SARIF, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(code: str, name: str, title: str, page: str) -> dict[str, Any]:
    return {
        "id": code,
        "name": name,
        "shortDescription": {"text": title},
        "fullDescription": {"text": title},
        "help": {"text": page, "markdown": page},
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": ["performance"], "precision": "high"},
    }


def _result(one: Scanned, number: int) -> dict[str, Any]:
    return {
        "ruleId": one.code,
        "ruleIndex": number,
        "level": "warning" if one.confidence != Confidence.LOW.value else "note",
        "message": {"text": f"{one.message}; {one.repair}"},
        "locations": [_location(one.path, one.line, one.column, one.end_line, one.end_column)],
        "relatedLocations": [
            {"id": place, **_location(step.path, step.line), "message": {"text": step.text}}
            for place, step in enumerate(one.why)
        ],
        "partialFingerprints": {"hotlapLine/v1": f"{one.code}:{one.path}:{one.source}"},
        "properties": {"frequency": one.frequency, "confidence": one.confidence, "applicability": one.applicability},
    }


def _location(path: str, line: int, column: int = 1, end_line: int = 0, end_column: int = 0) -> dict[str, Any]:
    region: dict[str, int] = {"startLine": line, "startColumn": column}
    if end_line:
        region |= {"endLine": end_line, "endColumn": end_column}
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(path)}, "region": region}}


def _uri(path: str) -> str:
    """Relative to where hotlap was started, which is what GitHub needs; absolute where it is outside."""
    file = Path(path).absolute()
    here = Path.cwd()
    if file.is_relative_to(here):
        return quote(PurePosixPath(*file.relative_to(here).parts).as_posix())
    return file.as_uri()


def _notes(scan: Scan) -> list[dict[str, Any]]:
    return [
        {
            "level": "warning",
            "message": {"text": one.reason},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(one.path)}}}],
        }
        for one in scan.unread
    ]


FORMATS = ("text", "json", "sarif", "github", "markdown")


def without(scan: Scan, kept: Iterable[Scanned]) -> Scan:
    return Scan(tuple(kept), scan.unread, scan.files, scan.lines)
