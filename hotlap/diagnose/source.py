"""What was measured and what the source shows, joined: a slow line gets its repair, a pattern its milliseconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hotlap.records.diagnosis import Diagnosis, Finding, Written
from hotlap.records.observation import CodeLine, Observation
from hotlap.records.scanned import Applicability, Frequency, Scan, Scanned

# Costs that have no line of their own, by the patterns that cause them.
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
_EASE = {each.value: rank for rank, each in enumerate(Applicability)}  # safe first
_FLAGS = {Applicability.SAFE.value: " --fix", Applicability.UNSAFE.value: " --fix --unsafe"}


def joined(diagnosis: Diagnosis, seen: Observation, scan: Scan) -> Diagnosis:
    taken: set[tuple[str, str, int, int]] = set()
    findings = []
    for one in diagnosis.findings:
        there = _on_its_line(one.place, scan.findings)
        about = [other for other in _about(one.code, scan.findings) if other not in there]
        taken.update(map(_key, (*there, *about)))
        findings.append(_with(one, there, about))
    left = [one for one in scan.findings if _key(one) not in taken]
    rest = [Written(finding=_plain(one), ms_per_step=_measured(one, seen)) for one in left]
    return replace(
        diagnosis,
        findings=tuple(findings),
        written=tuple(sorted(rest, key=lambda one: -(one.ms_per_step or 0.0))),
    )


def _plain(one: Scanned) -> Scanned:
    """Without what only its fix needs."""
    return replace(one, hints={})


def _key(one: Scanned) -> tuple[str, str, int, int]:
    return one.code, one.path, one.line, one.column


def _on_its_line(place: CodeLine | None, scanned: Iterable[Scanned]) -> list[Scanned]:
    if place is None:
        return []
    there = [one for one in scanned if one.path == place.file and one.line <= place.line <= one.last_line]
    return sorted(there, key=lambda one: _EASE[one.applicability])


def _about(code: str, scanned: Iterable[Scanned]) -> list[Scanned]:
    names = _SUBJECTS.get(code, ())
    return [
        one for one in scanned if one.name in names or (code == "data-wait" and one.frequency == Frequency.SAMPLE.value)
    ]


def _with(finding: Finding, there: list[Scanned], about: list[Scanned]) -> Finding:
    every = (*there, *about)
    if not every:
        return finding
    named = ", ".join(dict.fromkeys(f"{one.code} {one.name}" for one in every))
    advice = "; ".join(dict.fromkeys(map(repair, there))) if there else finding.advice
    for one in about[:2]:
        advice += f"; {one.path.rpartition('/')[2]}:{one.line}: {repair(one)}"
    return replace(
        finding,
        evidence=f"{finding.evidence}; in the source: {named}",
        advice=advice,
        scanned=tuple(map(_plain, every)),
    )


def repair(one: Scanned) -> str:
    """What to do about it, and the command that does it."""
    flags = _FLAGS.get(one.applicability)
    return f"{one.repair} (hotlap scan{flags} --select {one.code} repairs it)" if flags else one.repair


def _measured(one: Scanned, seen: Observation) -> float | None:
    """What was timed on its lines: waits and copies, else what sampling found there."""
    timed = [(each.file, each.line, each.ms_per_step) for each in seen.syncs]
    timed += [(each.file, each.line, each.ms_per_step) for each in seen.copies]
    sampled = [(each.file, each.line, each.ms_per_step) for each in seen.hot_lines]
    for known in (timed, sampled):
        spent = [ms for file, line, ms in known if file == one.path and one.line <= line <= one.last_line]
        if spent:
            return sum(spent)
    return None
