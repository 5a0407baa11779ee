"""The baseline: known findings that a scan does not show.

They are matched by file, rule and the text of the line, so that lines may move.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from hotlap.errors import ScanRefused
from hotlap.records.scan_finding import ScanFinding

Key = tuple[str, str, str]


def write(path: Path, findings: Iterable[ScanFinding]) -> int:
    counted = Counter(_key(finding, path) for finding in findings)
    entries = [
        {"path": file, "code": code, "line": line, "count": count}
        for (file, code, line), count in sorted(counted.items())
    ]
    try:
        path.write_text(json.dumps({"schema": 1, "known": entries}, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ScanRefused(f"cannot write the baseline {path}: {error.strerror}") from error
    return sum(counted.values())


def unknown(path: Path, findings: Iterable[ScanFinding]) -> list[ScanFinding]:
    """Return the findings that are not in the baseline; an entry with count n hides n equal findings."""
    remaining = _read(path)
    new = []
    for finding in findings:
        key = _key(finding, path)
        if remaining[key] > 0:
            remaining[key] -= 1
        else:
            new.append(finding)
    return new


def _key(finding: ScanFinding, baseline: Path) -> Key:
    file = Path(os.path.normpath(Path(finding.path).absolute()))
    base = baseline.absolute().parent
    return (
        file.relative_to(base).as_posix() if file.is_relative_to(base) else file.as_posix(),
        finding.code,
        finding.source,
    )


def _read(path: Path) -> Counter[Key]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Counter(
            {
                (str(entry["path"]), str(entry["code"]), str(entry["line"])): int(entry["count"])
                for entry in data["known"]
            }
        )
    except FileNotFoundError as error:
        raise ScanRefused(
            f"there is no baseline {path}; create it: hotlap scan … --baseline {path} --write-baseline"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ScanRefused(f"{path} is not a hotlap baseline; create it again with --write-baseline") from error
