"""The messages between the process that runs a trial and the trial process itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hotlap.records.codec import SCHEMA, from_json
from hotlap.records.session import Session
from hotlap.records.traces import State
from hotlap.records.trial import MetricValue

ORDER = "order"
REPORT = "told"
SCRATCH = "scratch"  # a folder beside the session for what the program writes
ENOUGH = "enough"  # a file that means: no further step is needed
PLACES = "places.txt"  # a file that lists the folders the program read from
TEMPORARY = "temporary.txt"  # a file that lists the temporary files the program wrote
LEFT = "left"  # a file that means: the program's own code is over, the interpreter is shutting down


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """How to run one process of a trial; the session beside it says what to apply."""

    schema: int
    scratch: str  # what the program writes goes here
    steps: int | None
    seed_shift: int
    nudge: float  # as in Sample
    readings: int  # continue after the steps until the metric was read this often, or until told to end
    metric: str | None  # of hotlap.metric
    tag: str | None  # of TensorBoard
    device_mb: float | None = None  # of memory on each device, at most
    screens: float | None = None  # as in Spec


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A point in time on the device's clock."""

    steps: int  # ended before it
    seconds: float  # since the first mark


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessReport:
    """What one process reports about itself."""

    schema: int
    pid: int
    rank: int
    done: bool  # all requested steps
    began: float  # seconds from the launch to the start of the first step
    ends: tuple[float, ...]  # the end of each step in seconds from the launch, by the host's clock
    marks: tuple[Mark, ...]  # CUDA only
    losses: tuple[float, ...]
    readings: tuple[MetricValue, ...]
    hardware: str
    host_mb: float
    device_mb: float | None
    torch: str = ""  # its version
    state: State | None = None  # None: it could not be read


def read_order(session: Session) -> Order:
    """Return the order beside a session; without one, an order that only diverts writes."""
    path = Path(session.folder) / f"{ORDER}.json"
    if path.exists():
        return from_json(Order, path.read_text(encoding="utf-8"), str(path))
    return Order(
        schema=SCHEMA,
        scratch=str(Path(session.folder) / SCRATCH),
        steps=None,
        seed_shift=0,
        nudge=0.0,
        readings=0,
        metric=None,
        tag=None,
    )
