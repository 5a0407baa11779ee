"""The tables of a profile as plain rows."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.records.diagnosis import Diagnosis, SourcePattern
from hotlap.records.figures import NONE, number, times
from hotlap.records.observation import BACKWARD, DATA, EVALUATION, SPAN_PREFIX, Observation
from hotlap.report.shared.figures import percent, short_path
from hotlap.report.shared.parts import Column, Table

LONGEST_KERNEL = 60  # characters
MOST_SYNCS, MOST_LINES, MOST_KERNELS, MOST_FINDINGS, MOST_COPIES, MOST_WRITTEN = 8, 6, 6, 8, 4, 8


def all_of(observation: Observation, diagnosis: Diagnosis) -> tuple[Table, ...]:
    drawn = (
        syncs(observation),
        copies(observation),
        hot_lines(observation),
        kernels(observation),
        ranks(observation),
        findings(observation, diagnosis),
        written(observation, diagnosis),
    )
    return tuple(table for table in drawn if table.rows)


def where(file: str, line: int, observation: Observation) -> str:
    return f"{short_path(file, observation.directory)}:{line}"


def _and_more(rows: Sequence[object], most: int) -> str:
    return f"and {len(rows) - most} more" if len(rows) > most else ""


def findings(observation: Observation, diagnosis: Diagnosis) -> Table:
    found = diagnosis.findings
    return Table(
        title="Findings",
        columns=(
            Column("#", figures=True),
            Column("code", minimum=13),
            Column("what", minimum=16),
            Column("at most", figures=True),
            Column("where", place=True, minimum=10),
        ),
        rows=tuple(
            (
                str(rank),
                finding.code,
                f"{finding.title}: {finding.evidence}",
                times(finding.at_most) if finding.at_most > 1.0 else NONE,
                where(finding.place.file, finding.place.line, observation) if finding.place else NONE,
            )
            for rank, finding in enumerate(found[:MOST_FINDINGS], 1)
        ),
        note="; ".join(
            filter(
                None,
                (
                    _and_more(found, MOST_FINDINGS),
                    "at most: the speed-up if all that can be saved were saved; gains never add up",
                ),
            )
        ),
    )


def written(observation: Observation, diagnosis: Diagnosis) -> Table:
    """List the patterns in the source that no finding accounts for, one row per line of code."""
    lines: dict[tuple[str, int], list[SourcePattern]] = {}
    for pattern in diagnosis.written:
        lines.setdefault((pattern.finding.path, pattern.finding.line), []).append(pattern)
    found = list(lines.values())
    return Table(
        title="Also in the source",
        columns=(
            Column("where", place=True, minimum=10),
            Column("code"),
            Column("what", minimum=16),
            Column("ms/step", figures=True),
            Column("what to do", minimum=16, extra=True),
        ),
        rows=tuple(
            (
                where(patterns[0].finding.path, patterns[0].finding.line, observation),
                ", ".join(dict.fromkeys(pattern.finding.code for pattern in patterns)),
                "; ".join(dict.fromkeys(pattern.finding.message for pattern in patterns)),
                number(patterns[0].ms_per_step),
                "; ".join(dict.fromkeys(pattern.finding.repair for pattern in patterns)),
            )
            for patterns in found[:MOST_WRITTEN]
        ),
        note="; ".join(filter(None, (_and_more(found, MOST_WRITTEN), "see the repairs: hotlap scan --diff"))),
    )


def syncs(observation: Observation) -> Table:
    found = sorted(observation.syncs, key=lambda sync: -sync.ms_per_step)
    return Table(
        title="Host syncs",
        columns=(
            Column("where", place=True, minimum=10),
            Column("function", extra=True),
            Column("kind"),
            Column("calls/step", figures=True),
            Column("ms/step", figures=True),
            Column("", minimum=9),
        ),
        rows=tuple(
            (
                where(sync.file, sync.line, observation) + (f" via {sync.via}" if sync.via else ""),
                sync.function,
                sync.kind,
                number(sync.per_step),
                number(sync.ms_per_step),
                "waits" if sync.waits else "would wait on CUDA",
            )
            for sync in found[:MOST_SYNCS]
        ),
        note=_and_more(found, MOST_SYNCS),
    )


def copies(observation: Observation) -> Table:
    found = sorted(observation.copies, key=lambda copy: -copy.ms_per_step)
    return Table(
        title="Copies to the device",
        columns=(
            Column("where", place=True, minimum=10),
            Column("memory"),
            Column("call"),
            Column("MB/step", figures=True),
            Column("ms/step", figures=True),
        ),
        rows=tuple(
            (
                where(copy.file, copy.line, observation),
                "pinned" if copy.pinned else "pageable",
                "blocking" if copy.blocking else "non-blocking",
                number(copy.bytes_per_step / 1e6),
                number(copy.ms_per_step),
            )
            for copy in found[:MOST_COPIES]
        ),
        note=_and_more(found, MOST_COPIES),
    )


def hot_lines(observation: Observation) -> Table:
    found = sorted(observation.hot_lines, key=lambda line: -line.share)
    step = observation.mean_step_ms - observation.ms(EVALUATION)
    return Table(
        title="Hot lines",
        columns=(
            Column("where", place=True, minimum=10),
            Column("function", extra=True),
            Column("phase"),
            Column("ms/step", figures=True),
            Column("share", figures=True),
        ),
        rows=tuple(
            (
                where(line.file, line.line, observation),
                line.function,
                line.phase.removeprefix(SPAN_PREFIX),
                number(line.ms_per_step),
                NONE if line.phase == EVALUATION or step <= 0 else percent(line.ms_per_step / step),
            )
            for line in found[:MOST_LINES]
        ),
        note=_and_more(found, MOST_LINES),
    )


def kernels(observation: Observation) -> Table:
    found = sorted(observation.device.kernels, key=lambda kernel: -kernel.ms_per_step) if observation.device else []
    return Table(
        title="Kernels on the device",
        columns=(
            Column("kernel", place=True),
            Column("kind"),
            Column("calls/step", figures=True),
            Column("ms/step", figures=True),
            Column("of busy", figures=True),
        ),
        rows=tuple(
            (
                short_kernel(kernel.name),
                kernel.kind,
                number(kernel.per_step),
                number(kernel.ms_per_step),
                percent(kernel.share),
            )
            for kernel in found[:MOST_KERNELS]
        ),
        note=_and_more(found, MOST_KERNELS),
    )


def short_kernel(name: str) -> str:
    """Shorten a C++ kernel name: no return type, no torch namespaces, and not all of its template."""
    short = name.removeprefix("void ").replace("at::native::", "").replace("(anonymous namespace)::", "")
    return short if len(short) <= LONGEST_KERNEL else short[: LONGEST_KERNEL - 1] + "…"


def ranks(observation: Observation) -> Table:
    several = observation.ranks if len(observation.ranks) > 1 else ()
    slowest = max(range(len(several)), key=lambda i: several[i].own_ms, default=None)
    return Table(
        title="Ranks",
        columns=(
            Column("rank", figures=True),
            Column("steps", figures=True, extra=True),
            Column("ms/step", figures=True),
            Column("own ms", figures=True),
            Column("samples/s", figures=True),
            Column("data", figures=True),
            Column("backward", figures=True, extra=True),
            Column("", minimum=7),
        ),
        rows=tuple(
            (
                str(rank.rank),
                str(rank.steps),
                number(rank.step_ms),
                number(rank.own_ms),
                number(rank.samples_per_second),
                percent(rank.shares.get(DATA, 0.0)),
                percent(rank.shares.get(BACKWARD, 0.0)),
                "slowest" if i == slowest else "",
            )
            for i, rank in enumerate(several)
        ),
        note="own ms: a step without backward, where ranks wait for each other" if several else "",
        marked=slowest,
    )
