"""Joins a scan with what a saved run measured: milliseconds at each finding, and whether its line ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from statistics import fmean

from hotlap.diagnose import diagnose
from hotlap.diagnose.sentences import listed
from hotlap.records.decisions import Decisions
from hotlap.records.figures import number
from hotlap.records.observation import Observation
from hotlap.records.scan_finding import Frequency, Scan, ScanFinding
from hotlap.store import Run

_Place = tuple[str, str, int, int]
_CHANGED_WITHIN = 1.0  # seconds: times of files are coarse


def with_observation(scan: Scan, run: Run, seen: Observation) -> Scan:
    """Return the scan with what a profile measured. Lines of files that changed since are not compared."""
    spelled = _spellings(seen)
    paths = {finding.path: _resolved(finding.path) for finding in scan.findings}
    changed = {path for path, resolved in paths.items() if _changed(resolved, seen.started)}
    current = [finding for finding in scan.findings if finding.path not in changed]
    there = [replace(finding, path=spelled.get(paths[finding.path], paths[finding.path])) for finding in current]
    costs = _costs(seen, there)
    joined = {id(old): _measured(old, new, costs, seen) for old, new in zip(current, there, strict=True)}
    findings = tuple(joined.get(id(finding), finding) for finding in scan.findings)
    return replace(scan, findings=findings, profile=_words(run, seen, changed))


def with_decisions(scan: Scan, run: Run, decided: Decisions) -> Scan:
    """Return the scan with the time that `hotlap run` gained by what a finding asks for, where it tried that."""
    gained = dict(_gains(decided))
    findings = tuple(
        _gained(finding, gained[finding.name]) if finding.name in gained else finding for finding in scan.findings
    )
    words = f"Measured by {run.id}: {decided.steps} steps of hotlap run, which measures optimisations and no lines."
    return replace(scan, findings=findings, profile=words)


def _gained(finding: ScanFinding, ms: float) -> ScanFinding:
    return replace(finding, ms_per_step=ms, measured=f"hotlap run gained {number(ms)} ms a step by it")


def _gains(decided: Decisions) -> Iterator[tuple[str, float]]:
    for trial in decided.tried:
        if len(trial.names) == 1 and trial.kept and trial.without and trial.with_:
            yield trial.names[0], max(0.0, 1e3 * (fmean(trial.without) - fmean(trial.with_)))


def _spellings(seen: Observation) -> dict[str, str]:
    """Return each file that the observation names, by its resolved path."""
    files = [sync.file for sync in seen.syncs] + [copy.file for copy in seen.copies]
    files += [line.file for line in seen.hot_lines]
    files += [*seen.followed.ran, *seen.followed.missed] if seen.followed else []
    return {_resolved(file): file for file in files}


def _resolved(path: str) -> str:
    return str(Path(path).resolve())


def _changed(path: str, started: str) -> bool:
    try:
        return Path(path).stat().st_mtime > datetime.fromisoformat(started).timestamp() + _CHANGED_WITHIN
    except (OSError, ValueError):
        return True


def _key(finding: ScanFinding) -> _Place:
    return finding.code, finding.path, finding.line, finding.column


def _costs(seen: Observation, findings: Iterable[ScanFinding]) -> dict[_Place, tuple[float, str]]:
    """Return the milliseconds at each finding and what they are, from the diagnosis that a profile makes of both."""
    diagnosis = diagnose(seen, Scan(tuple(findings)))
    found: dict[_Place, tuple[float, str]] = {}
    for pattern in diagnosis.written:
        if pattern.ms_per_step is not None:
            found[_key(pattern.finding)] = (pattern.ms_per_step, f"{number(pattern.ms_per_step)} ms a step here")
    for cost in diagnosis.findings:
        for scanned in cost.scanned:
            if cost.ms_per_step > found.get(_key(scanned), (0.0, ""))[0]:
                found[_key(scanned)] = (cost.ms_per_step, f"at most {number(cost.ms_per_step)} ms a step: {cost.title}")
    return found


def _measured(
    old: ScanFinding, new: ScanFinding, costs: Mapping[_Place, tuple[float, str]], seen: Observation
) -> ScanFinding:
    ms, words = costs.get(_key(new), (None, ""))
    ran = True if ms is not None else _ran(new, seen)
    return replace(old, ms_per_step=ms, measured=words, ran=ran)


def _ran(finding: ScanFinding, seen: Observation) -> bool | None:
    """Return whether the line ran in the steps followed; None where following them does not show it."""
    followed = seen.followed
    if followed is None or not finding.runs_itself or finding.frequency.rank < Frequency.BATCH.rank:
        return None  # a few steps show nothing of what runs seldom
    lines = range(finding.line, finding.last_line + 1)
    if not set(lines).isdisjoint(followed.ran.get(finding.path, ())):
        return True
    if not set(lines).isdisjoint(followed.missed.get(finding.path, ())):
        return False
    elsewhere = len(seen.ranks) > 1 or any(loader.workers for loader in seen.loaders)
    return None if elsewhere else False


def _words(run: Run, seen: Observation, changed: Iterable[str]) -> str:
    words = f"Measured by {run.id}: {number(seen.mean_step_ms)} ms a step"
    words += f"; {seen.followed.steps} steps followed line by line." if seen.followed else "; lines were not followed."
    moved = sorted(changed)
    if moved:
        words += f" Changed since, so not compared: {listed(moved)}; measure again: hotlap profile"
    return words
