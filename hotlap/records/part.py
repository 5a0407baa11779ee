"""What one process of the command reports. The parent merges the parts into an Observation."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.records.observation import Observation


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What a process did, reported even if it never took a step."""

    optimizers_made: int
    optimizer_steps: int
    loaders_made: int
    batches: int
    backwards: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    schema: int
    pid: int
    rank: int
    world_size: int
    complete: bool
    counts: Counts
    trace_file: str | None
    trace_steps: int
    observation: Observation
