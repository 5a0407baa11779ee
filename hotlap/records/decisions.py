"""What a run has tried while it trained, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockTrial:
    """Some optimisations switched on on top of others, in blocks of steps that take turns."""

    names: tuple[str, ...]
    on_top_of: tuple[str, ...]
    at_step: int
    without: tuple[float, ...]  # seconds a step, of each block
    with_: tuple[float, ...]
    ratio: float | None  # times as fast; None: not measured
    low: float | None
    high: float | None
    kept: bool
    cost: float  # seconds that it took longer than the same steps without
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Decisions:
    """Of one process of the command."""

    schema: int
    pid: int
    on: tuple[str, ...]  # what stayed on
    tried: tuple[BlockTrial, ...]
    after: float | None  # seconds a step, when it was last compared
    ratio: float  # times as fast as the program by itself, by what was compared
    remembered: bool  # it began with what an earlier run had decided
    is_main: bool  # the process that was started, not one of its children
    steps: int
    seconds: float  # from the first step to now
    spent: float  # seconds that trying has cost
    is_over: bool  # all that can be tried was
    ever_on: tuple[str, ...] = ()  # for some of the steps, or for all
    at_once: bool = False  # all was on from the start, and nothing was decided


@dataclass(frozen=True, kw_only=True, slots=True)
class RememberedDecisions:
    """What was decided for a command: the next run of it begins with that."""

    schema: int
    source: str  # hash of the Python files of the command
    hotlap: str
    torch: str
    hardware: str
    on: tuple[str, ...]  # of what is switched between steps
