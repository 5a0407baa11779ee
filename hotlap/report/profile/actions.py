"""What to do next: the advice of the top findings, and how to look closer or measure again."""

from __future__ import annotations

import shlex

from hotlap.records.diagnosis import Diagnosis, Finding
from hotlap.records.observation import Observation
from hotlap.report.profile.tables import where

MOST = 3
ENOUGH_STEPS = 10


def next_steps(observation: Observation, diagnosis: Diagnosis) -> tuple[str, ...]:
    advised = advice(observation, diagnosis)
    return (*advised, *_commands(observation, bool(advised)))


def advice(observation: Observation, diagnosis: Diagnosis) -> tuple[str, ...]:
    return tuple(_action(finding, observation) for finding in _different(diagnosis.findings)[:MOST])


def _different(findings: tuple[Finding, ...]) -> list[Finding]:
    """Keep the first finding of each advice: ten lines with one remedy are one action."""
    first: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        first.setdefault((finding.code, finding.advice), finding)
    return list(first.values())


def _action(finding: Finding, observation: Observation) -> str:
    at = f" ({where(finding.place.file, finding.place.line, observation)})" if finding.place else ""
    return f"{finding.code}{at}: {finding.advice}"


def _commands(observation: Observation, advised: bool) -> tuple[str, ...]:
    command = shlex.join(observation.command)
    if len(observation.step_ms) < ENOUGH_STEPS:
        return (_more_steps(observation, command),)

    applied = (f"have what helps applied while it trains: hotlap run {command}; proven: hotlap tune {command}",)
    if observation.trace is None and (observation.device is not None or not advised):
        return (*applied, f"look closer, kernel by kernel: hotlap profile --trace {command}")
    return (*applied, f"measure again after each change: hotlap profile {command}") if advised else applied


def _more_steps(observation: Observation, command: str) -> str:
    if observation.ended == "program failed":
        return f"make the command work first, without hotlap: {command}"
    if observation.ended == "program ended":
        return "let the command train longer (more data or epochs): it ended before enough steps were measured"
    return f"measure more steps: hotlap profile --steps 50 {command}"
