"""What to do next: the advice of the first findings, and how to look closer or measure again."""

from __future__ import annotations

import shlex

from hotlap.records.diagnosis import Diagnosis, Finding
from hotlap.records.observation import Observation
from hotlap.report.profile.tables import where

MOST = 3
ENOUGH_STEPS = 10


def next_steps(seen: Observation, diagnosis: Diagnosis) -> tuple[str, ...]:
    advised = tuple(_action(finding, seen) for finding in _different(diagnosis.findings)[:MOST])
    return (*advised, *_commands(seen, bool(advised)))


def _different(findings: tuple[Finding, ...]) -> list[Finding]:
    """Ten lines with one cure are one thing to do."""
    first: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        first.setdefault((finding.code, finding.advice), finding)
    return list(first.values())


def _action(finding: Finding, seen: Observation) -> str:
    at = f" ({where(finding.place.file, finding.place.line, seen)})" if finding.place else ""
    return f"{finding.code}{at}: {finding.advice}"


def _commands(seen: Observation, advised: bool) -> tuple[str, ...]:
    command = shlex.join(seen.command)
    if len(seen.step_ms) < ENOUGH_STEPS:
        return (_more_steps(seen, command),)

    if seen.trace is None and (seen.device is not None or not advised):
        return (f"look closer, kernel by kernel: hotlap profile --trace {command}",)
    return (f"measure again after each change: hotlap profile {command}",) if advised else ()


def _more_steps(seen: Observation, command: str) -> str:
    if seen.ended == "program failed":
        return f"make the command work by itself first: {command}"
    if seen.ended == "program ended":
        return "let the command train longer (more data or epochs): it ended before enough steps were measured"
    return f"measure more steps: hotlap profile --steps 50 {command}"
