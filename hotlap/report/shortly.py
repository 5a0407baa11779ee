"""The result of a run in a few words, for lists."""

from __future__ import annotations

from hotlap.records.comparison import Comparison
from hotlap.records.decisions import Decisions
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.figures import times
from hotlap.records.tune_record import TuneRecord


def compared(comparison: Comparison) -> str:
    return f"{comparison.result}: {comparison.why}"


def tuned(record: TuneRecord) -> str:
    if not record.finished:
        return f"unfinished; continue: hotlap tune --resume {record.run}"
    if not record.kept:
        return "nothing proven faster"
    names = ", ".join(choice.name for choice in record.kept)
    speed = record.speedup.speed if record.speedup is not None else None
    return f"{times(speed.ratio)} as fast, proven: {names}" if speed is not None else f"kept: {names}"


def decided(decisions: Decisions) -> str:
    if decisions.at_once:
        return f"on from the first step: {', '.join(decisions.on) or 'nothing'}"
    if not decisions.tried or decisions.after is None:
        return f"ended after {decisions.steps} steps, before anything was decided"
    if not decisions.on:
        return "nothing helped"
    return f"{times(decisions.ratio)} as fast: {', '.join(decisions.on)}"


def profiled(diagnosis: Diagnosis) -> str:
    return diagnosis.sentence.partition(";")[0].rstrip(".")
