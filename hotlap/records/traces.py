"""What a process of a trial leaves besides its losses, to compare two arms by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """A summary of numbers, such as one weight tensor: equal digests mean equal numbers, whatever their layout.

    The sketch is a handful of signed sums: the distance between two sketches approximates that between the numbers.
    """

    name: str
    digest: str
    norm: float
    sketch: tuple[float, ...]
    start: tuple[float, ...] = ()  # the sketch before the first step; empty if the tensor did not exist yet


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Calls of a model between two steps that do not train it."""

    step: int  # steps taken before it
    calls: int
    total: float  # weighted sum of the outputs, which depends on their order
    size: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """Memory in use after a step of the training."""

    step: int
    host_mb: float
    device_mb: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """The state of a process after its last step."""

    weights: tuple[Fingerprint, ...]  # parameters and buffers of every live model
    optimizers: tuple[Fingerprint, ...]
    streams: tuple[tuple[str, str], ...]  # random streams: name, digest
    evaluations: tuple[Evaluation, ...]
    memory: tuple[Weight, ...]
    reserved_mb: float | None  # peak on the devices, including what torch's allocator holds back
    unreadable: tuple[str, ...]  # tensors whose numbers cannot be read
    world: int  # processes that train together; this is one of them
    host_total_mb: float | None = None  # of the machine
    device_total_mb: float | None = None  # of one device
    process: tuple[tuple[str, str], ...] = ()  # other properties: signals, open files, other processes
    held: tuple[Fingerprint, ...] = ()  # floating-point tensors that the program's own objects hold
    contents: tuple[tuple[str, str], ...] = ()  # its arrays and tensors of whole numbers: path, digest
    own_streams: tuple[tuple[str, str], ...] = ()  # its own generators of random numbers: path, digest
    schedulers: tuple[tuple[str, str], ...] = ()  # attribute of a scheduler, value
    threads: int | None = None  # Python's threads; None in a record that did not count them


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedFile:
    path: str
    kind: str  # "torch", "safetensors", "numpy", "text" or "bytes"
    digest: str  # of all its bytes; for a torch file, of everything in it but tensors
    words: str  # digest of a text without its numbers; empty for other kinds
    parts: tuple[Fingerprint, ...] = ()  # its tensors
    mode: int | None = None  # its permissions


@dataclass(frozen=True, kw_only=True, slots=True)
class Temporary:
    """The temporary files that a process wrote and left behind."""

    files: int
    mb: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Traces:
    state: State | None  # None: the process ended before it could report it
    saved: tuple[SavedFile, ...]
    printed: tuple[str, ...]  # lines of the standard output, without overwritten ones such as progress bars
    complained: tuple[str, ...]  # the same for the standard error
    exit_code: int | None  # None: hotlap ended it
    tree_mb: float | None  # peak of its process tree, measured from outside
    temporary: Temporary | None = None  # None: not counted
    cut: tuple[str, ...] = ()  # what was too large to record, in words
