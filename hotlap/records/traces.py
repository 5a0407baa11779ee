"""What a process of a trial leaves beside its losses: what two arms are compared in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """Some numbers, such as one weight tensor: equal digests are equal numbers, in whatever layout they lie.

    The sketch is a handful of sums with signs: the distance between two sketches is about that of the numbers.
    """

    name: str
    digest: str
    norm: float
    sketch: tuple[float, ...]
    start: tuple[float, ...] = ()  # its sketch before the first step; empty where it was not there yet


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Calls of a model between two steps without training it."""

    step: int  # steps taken before it
    calls: int
    total: float  # of what came out, with weights that tell the order
    size: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """Memory taken at a moment of the training."""

    step: int
    host_mb: float
    device_mb: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Read in the process after its last step."""

    weights: tuple[Fingerprint, ...]  # parameters and buffers of every model that is alive
    optimizers: tuple[Fingerprint, ...]
    streams: tuple[tuple[str, str], ...]  # of random numbers: name, digest
    evaluations: tuple[Evaluation, ...]
    memory: tuple[Weight, ...]
    reserved_mb: float | None  # peak on the devices, with what torch keeps for later
    unreadable: tuple[str, ...]  # tensors that cannot be read as numbers
    world: int  # processes that train together; this is one of them
    host_total_mb: float | None = None  # of the machine
    device_total_mb: float | None = None  # of one device
    process: tuple[tuple[str, str], ...] = ()  # what it is like besides: signals, open files, other processes


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedFile:
    path: str
    kind: str  # "torch", "safetensors", "numpy", "text" or "bytes"
    digest: str  # of all its bytes; of a torch file: of all that is not a tensor in it
    words: str  # digest of a text without its numbers; empty for the others
    parts: tuple[Fingerprint, ...] = ()  # its tensors
    mode: int | None = None  # who may read and write it


@dataclass(frozen=True, kw_only=True, slots=True)
class Traces:
    state: State | None  # None: the process did not come to tell it
    saved: tuple[SavedFile, ...]
    printed: tuple[str, ...]  # lines of the standard output; without those drawn over, as progress bars are
    complained: tuple[str, ...]  # the same of the standard error
    exit_code: int | None  # None: we ended it
    tree_mb: float | None  # peak of all its processes together, as seen from outside
    cut: tuple[str, ...] = ()  # what was too much to be kept, in words
