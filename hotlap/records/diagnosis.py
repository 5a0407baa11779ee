"""What an observation means: a verdict, findings ranked by their largest possible gain, and what is unknown."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.records.observation import CodeLine
from hotlap.records.scan_finding import ScanFinding

VERDICTS = (
    "input-bound",
    "copy-bound",
    "sync-bound",
    "launch-bound",
    "compute-bound",
    "memory-bound",
    "balanced",
    "unknown",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    code: str  # the pattern, e.g. "sync-in-loop"; never reused for another
    title: str  # what was found, one line
    evidence: str  # the figures behind it
    advice: str  # what to change
    place: CodeLine | None
    ms_per_step: float  # the time at stake
    at_most: float  # Amdahl bound: step time over step time without this cost; 1.0: unknown, or no gain in step time
    scanned: tuple[ScanFinding, ...] = ()  # what the scan found at this place, with its repair


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePattern:
    """A pattern in the source that no finding accounts for."""

    finding: ScanFinding
    ms_per_step: float | None  # measured on its line; None: nothing was measured there


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    schema: int
    verdict: str  # one of VERDICTS
    sentence: str  # the verdict with its evidence
    findings: tuple[Finding, ...]  # largest at_most first
    unknowns: tuple[str, ...]  # "cannot tell X, because …"
    written: tuple[SourcePattern, ...] = ()  # other patterns in the source, costliest first
