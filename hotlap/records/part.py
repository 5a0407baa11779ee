"""What one process of the command says of itself. The parent joins the parts into the Observation."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.records.observation import Observation


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What a process did, told even when it never stepped."""

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
