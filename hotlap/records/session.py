"""What the hotlap command passes to the processes it enters."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.records.decisions import RememberedDecisions
from hotlap.records.plan import Choice, Circumstances


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    schema: int
    folder: str  # where parts, progress and errors go
    agent: str  # "package.module:function", called with (torch, session, seams) once torch is imported
    steps: int | None  # None: as many as a steady figure needs
    warmup: int | None  # None: detected
    max_seconds: float
    full: bool  # let the command run on after the window
    ceiling: bool  # feed one cached batch again and again
    trace: bool
    started: float  # time.time() of the launch
    choices: tuple[Choice, ...] = ()  # the optimisations to apply
    proven: Circumstances | None = None  # where the choices were proven; under other circumstances …
    otherwise: tuple[Choice, ...] = ()  # … these are applied
    decides: bool = False  # decide while training which choices stay on; otherwise all are on from the start
    memory: str | None = None  # the file in which decisions are remembered …
    source: str = ""  # … for this source
    remembered: RememberedDecisions | None = None  # from an earlier run of the same command and source
    quiet: bool = False  # say nothing on stderr
    verbose: bool = False  # print each trial as it happens
    speaker: int | None = None  # the process that says at its end why nothing was applied
    ears: tuple[int, ...] = ()  # device and inode of the stderr to print to; empty: any
    early: str | None = None  # "package.module:function", called with (session) before the program's first line
    resized: tuple[int, ...] = ()  # batch sizes: that of the program's training loader, and the one to give it
