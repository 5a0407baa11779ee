"""Joins measurements with a scan of the source: a slow line gets its repair, a pattern its milliseconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hotlap.diagnose.sentences import listed
from hotlap.records.diagnosis import Diagnosis, Finding, SourcePattern
from hotlap.records.observation import CodeLine, Observation
from hotlap.records.scan_finding import Applicability, Frequency, Scan, ScanFinding

# Findings whose cost has no line of its own, and the patterns that cause it.
_SUBJECTS = {
    "data-wait": ("loader-workers", "loader-persistent", "loader-prefetch"),
    "pageable-copy": ("loader-pinned", "pinned-copies"),
    "blocking-copy": ("pinned-copies",),
    "unfused-optimizer": ("fused-optimizer",),
    "slow-optimizer": ("fused-optimizer",),
    "garbage-collection": ("throttled-cleanup",),
    "evaluation-share": ("no-grad-missing", "no-grad-in-evaluation"),
    "launch-overhead": ("compile", "cuda-graphs"),
    "slow-forward": ("autocast", "cudnn-autotuner", "compile"),
    "slow-backward": ("autocast", "cudnn-autotuner", "compile"),
    "tf32-off": ("tf32",),
    "channels-last": ("channels-last",),
    "anomaly-mode": ("anomaly-mode",),
}
_MEASURED = ("loader-workers", "loader-persistent", "loader-prefetch")
_EASE = {applicability: rank for rank, applicability in enumerate(Applicability)}  # safe first
_FLAGS = {Applicability.SAFE: " --fix", Applicability.UNSAFE: " --fix --unsafe"}


def joined(diagnosis: Diagnosis, seen: Observation, scan: Scan) -> Diagnosis:
    taken: set[tuple[str, str, int, int]] = set()
    findings = []
    for finding in diagnosis.findings:
        there = _on_its_line(finding.place, scan.findings)
        about = [pattern for pattern in _about(finding.code, scan.findings) if pattern not in there]
        taken.update(map(_key, (*there, *about)))
        findings.append(_with(finding, there, about))
    left = [pattern for pattern in scan.findings if _key(pattern) not in taken]
    rest = [SourcePattern(finding=_plain(pattern), ms_per_step=_measured(pattern, seen)) for pattern in left]
    return replace(
        diagnosis,
        findings=tuple(findings),
        written=tuple(sorted(rest, key=lambda pattern: -(pattern.ms_per_step or 0.0))),
    )


def _plain(finding: ScanFinding) -> ScanFinding:
    """Drop the hints, which only a fix needs."""
    return replace(finding, hints={})


def _key(finding: ScanFinding) -> tuple[str, str, int, int]:
    return finding.code, finding.path, finding.line, finding.column


def _on_its_line(place: CodeLine | None, scanned: Iterable[ScanFinding]) -> list[ScanFinding]:
    if place is None:
        return []
    there = [
        finding for finding in scanned if finding.path == place.file and finding.line <= place.line <= finding.last_line
    ]
    return sorted(there, key=lambda finding: _EASE[finding.applicability])


def _about(code: str, scanned: Iterable[ScanFinding]) -> list[ScanFinding]:
    names = _SUBJECTS.get(code, ())
    return [
        finding
        for finding in scanned
        if finding.name in names or (code == "data-wait" and finding.frequency == Frequency.SAMPLE)
    ]


def _with(finding: Finding, there: list[ScanFinding], about: list[ScanFinding]) -> Finding:
    every = (*there, *about)
    if not every:
        return finding
    named = ", ".join(dict.fromkeys(f"{pattern.code} {pattern.name}" for pattern in every))
    advice = "; ".join(dict.fromkeys(map(repair, there))) if there else finding.advice
    # The finding's own advice has measured numbers; the repair of the same setting would name others.
    settings = [_at(pattern) for pattern in about if pattern.name in _MEASURED]
    advice += f" (the loader is made in {listed(settings)})" if settings else ""
    for pattern in [pattern for pattern in about if pattern.name not in _MEASURED][:2]:
        advice += f"; {_at(pattern)}: {repair(pattern)}"
    return replace(
        finding,
        evidence=f"{finding.evidence}; in the source: {named}",
        advice=advice,
        scanned=tuple(map(_plain, every)),
    )


def _at(pattern: ScanFinding) -> str:
    return f"{pattern.path.rpartition('/')[2]}:{pattern.line}"


def repair(finding: ScanFinding) -> str:
    """Return the repair in words and, where there is one, the command that makes it."""
    flags = _FLAGS.get(finding.applicability)
    return f"{finding.repair} (hotlap scan{flags} --select {finding.code} repairs it)" if flags else finding.repair


def _measured(finding: ScanFinding, seen: Observation) -> float | None:
    """Return the milliseconds measured on the pattern's lines: waits and copies if timed, else sampled time."""
    timed = [(sync.file, sync.line, sync.ms_per_step) for sync in seen.syncs]
    timed += [(copy.file, copy.line, copy.ms_per_step) for copy in seen.copies]
    sampled = [(hot.file, hot.line, hot.ms_per_step) for hot in seen.hot_lines]
    for known in (timed, sampled):
        spent = [ms for file, line, ms in known if file == finding.path and finding.line <= line <= finding.last_line]
        if spent:
            return sum(spent)
    return None
