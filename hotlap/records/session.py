"""What the hotlap command tells the processes it enters."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.records.decisions import RememberedDecisions
from hotlap.records.plan import Choice, Circumstances


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    schema: int
    folder: str  # where parts, progress and errors go
    agent: str  # "package.module:function", called with (torch, session, seams) once torch is imported
    steps: int | None  # None: enough for a steady figure
    warmup: int | None  # None: detected
    max_seconds: float
    full: bool  # leave the command running after the window
    ceiling: bool  # feed one cached batch again and again
    trace: bool
    started: float  # time.time() of the launch
    choices: tuple[Choice, ...] = ()  # the optimisations to apply
    proven: Circumstances | None = None  # of those choices; under others …
    otherwise: tuple[Choice, ...] = ()  # … these are applied
    decides: bool = False  # which of the choices stay on is decided while it trains; else all are, from the start
    memory: str | None = None  # a file: what is decided is remembered there …
    source: str = ""  # … for this source
    remembered: RememberedDecisions | None = None  # from an earlier run of the same command and source
    quiet: bool = False  # say nothing on stderr
    verbose: bool = False  # say each thing that is tried, as it happens
    speaker: int | None = None  # the process that says at its end why nothing was applied
    ears: tuple[int, ...] = ()  # device and inode of the stderr that is spoken to; empty: any
    early: str | None = None  # "package.module:function", called with (session) before the program's first line
