"""The findings of a scan as SARIF 2.1.0, of which GitHub's code scanning shows a subset."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from hotlap.records.scan_finding import Scan, ScanFinding, Severity

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "%SRCROOT%"
_LEVELS = {Severity.HIGH: "error", Severity.MEDIUM: "warning", Severity.LOW: "note"}


def sarif(scan: Scan, titles: Mapping[str, tuple[str, str, str]], version: str) -> str:
    """Return the SARIF log; `titles` maps a code to its name, title and page."""
    codes = sorted(titles)
    numbers = {code: number for number, code in enumerate(codes)}
    driver = {
        "name": "hotlap", "version": version, "semanticVersion": version,
        "informationUri": "https://pypi.org/project/hotlap/", "rules": [_rule(code, *titles[code]) for code in codes],
    }  # fmt: skip
    counts: Counter[tuple[str, str, str]] = Counter()
    base = _base()
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"description": {"text": "the root of the repository"}}},
        "results": [_result(finding, numbers[finding.code], base, counts) for finding in scan.findings],
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": _notes(scan, base)}],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(code: str, name: str, title: str, page: str) -> dict[str, Any]:
    return {
        "id": code,
        "name": name,
        "shortDescription": {"text": title},
        "fullDescription": {"text": title},
        "help": {"text": page, "markdown": page},
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": ["performance"], "precision": "high", "problem.severity": "recommendation"},
    }


def _result(finding: ScanFinding, number: int, base: Path, counts: Counter[tuple[str, str, str]]) -> dict[str, Any]:
    return {
        "ruleId": finding.code,
        "ruleIndex": number,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}; {finding.repair}"},
        "locations": [_location(base, finding.path, _region(finding))],
        "relatedLocations": [
            {
                "id": place,
                **_location(base, step.path, {"startLine": step.file_line or step.line}),
                "message": {"text": step.text},
            }
            for place, step in enumerate(finding.why)
        ],
        "partialFingerprints": {"primaryLocationLineHash": _fingerprint(finding, counts)},
        "properties": {
            "frequency": finding.frequency,
            "confidence": finding.confidence,
            "severity": finding.severity,
            "applicability": finding.applicability,
        },
    }


def _fingerprint(finding: ScanFinding, counts: Counter[tuple[str, str, str]]) -> str:
    """Identify a finding by its source line and its number among equal ones, which survives moved lines."""
    key = (finding.code, finding.path, finding.source)
    counts[key] += 1
    text = f"{finding.code} {finding.source}".encode(errors="replace")
    return f"{hashlib.blake2b(text, digest_size=8).hexdigest()}:{counts[key]}"


def _region(finding: ScanFinding) -> dict[str, int]:
    if finding.cell:
        return {"startLine": max(finding.file_line, 1)}
    region = {"startLine": finding.line, "startColumn": finding.column}
    if finding.block:
        return region | {"endLine": finding.line, "endColumn": finding.column + max(1, len(finding.source))}
    return region | {"endLine": finding.end_line, "endColumn": finding.end_column}


def _location(base: Path, path: str, region: dict[str, int]) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": _artifact(path, base), "region": region}}


def _base() -> Path:
    """Return the root of the current repository, or the current folder outside of one."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def _artifact(path: str, base: Path) -> dict[str, str]:
    """Return the location relative to the repository root, as GitHub requires; absolute for files outside it."""
    file = Path(os.path.normpath(Path(path.partition(":cell ")[0]).absolute()))
    if file.is_relative_to(base):
        inside = PurePosixPath(*file.relative_to(base).parts).as_posix()
        return {"uri": quote(inside, errors="surrogateescape"), "uriBaseId": ROOT}
    return {"uri": file.as_uri()}


def _notes(scan: Scan, base: Path) -> list[dict[str, Any]]:
    return [
        {
            "level": "warning",
            "message": {"text": unread.reason},
            "locations": [{"physicalLocation": {"artifactLocation": _artifact(unread.path, base)}}],
        }
        for unread in scan.unread
    ]
