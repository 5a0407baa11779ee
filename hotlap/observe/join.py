"""Joins the parts that the processes wrote into one Observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hotlap.errors import RecordUnreadable
from hotlap.observe.trace import read_trace
from hotlap.records.caution import Caution
from hotlap.records.codec import from_json
from hotlap.records.observation import BACKWARD, Observation, Rank
from hotlap.records.part import Part


def read_parts(folder: Path) -> list[Part]:
    """Return all parts, the most informative first, without truncated ones (from a process killed while writing)."""
    parts = []
    for path in sorted(folder.glob("part-*.json")):
        try:
            parts.append(from_json(Part, path.read_text(encoding="utf-8"), str(path)))
        except (RecordUnreadable, UnicodeDecodeError):
            continue
    return sorted(parts, key=lambda part: (-part.observation.steps, -part.counts.optimizer_steps, part.rank))


def join(parts: Sequence[Part], folder: Path) -> Observation:
    """Return the observation of the first rank of a distributed job, or of the trainer with the most steps."""
    job = [part for part in parts if part.world_size > 1 and part.counts.optimizer_steps]
    chosen = min(job, key=lambda part: part.rank) if job else parts[0]
    observation = chosen.observation
    if job:
        ranks = tuple(sorted((_rank(part) for part in job), key=lambda rank: rank.rank))
        speeds = [rank.samples_per_second for rank in ranks]
        observation = replace(observation, ranks=ranks, samples_per_second=sum(speeds) or None)
    elif sum(1 for part in parts if part.counts.optimizer_steps) > 1:
        observation = replace(observation, cautions=(*observation.cautions, Caution.OTHER_TRAINERS.name))
    return _with_trace(observation, chosen, folder)


def _rank(part: Part) -> Rank:
    seen = part.observation
    mean = seen.mean_step_ms
    return Rank(
        rank=part.rank,
        pid=part.pid,
        steps=seen.steps,
        step_ms=mean,
        own_ms=mean * (1 - seen.shares.get(BACKWARD, 0.0)),
        samples_per_second=seen.samples_per_second or 0.0,
        shares=seen.shares,
    )


def _with_trace(observation: Observation, part: Part, folder: Path) -> Observation:
    if part.trace_file is None:
        return observation
    path = folder / "trace" / part.trace_file
    try:
        device = read_trace(path, part.trace_steps, observation.mean_step_ms)
    except (OSError, ValueError, KeyError):
        return observation
    return replace(observation, device=device, trace=str(path.relative_to(folder.parent)))
