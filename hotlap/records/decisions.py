"""What a run tried while it trained, and what it decided."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockTrial:
    """A trial of some optimisations on top of others, in alternating blocks of steps."""

    names: tuple[str, ...]
    on_top_of: tuple[str, ...]
    at_step: int
    without: tuple[float, ...]  # seconds per step, for each block
    with_: tuple[float, ...]
    ratio: float | None  # times as fast; None: not measured
    low: float | None
    high: float | None
    kept: bool
    cost: float  # how many seconds longer it took than the same steps without it
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Decisions:
    """What one process of the command decided."""

    schema: int
    pid: int
    on: tuple[str, ...]  # what stayed on
    tried: tuple[BlockTrial, ...]
    after: float | None  # seconds per step when last compared
    ratio: float  # times as fast as the unchanged program, as last compared
    remembered: bool  # it started with what an earlier run decided
    is_main: bool  # the process that was started, not one of its children
    steps: int
    seconds: float  # from the first step to now
    spent: float  # seconds that the trials cost
    is_over: bool  # everything that can be tried was tried
    ever_on: tuple[str, ...] = ()  # what was on for at least some of the steps
    at_once: bool = False  # everything was on from the start, and nothing was decided
    command: tuple[str, ...] = ()  # of the process
    machine: str = ""  # its cores or GPUs, and its torch


@dataclass(frozen=True, kw_only=True, slots=True)
class RememberedDecisions:
    """What was decided for a command, with which its next run starts."""

    schema: int
    source: str  # hash of the Python files of the command
    hotlap: str
    torch: str
    hardware: str
    on: tuple[str, ...]  # the optimisations that stayed on, of those switched between steps
    untried: tuple[str, ...] = ()  # those that it had no time to measure
