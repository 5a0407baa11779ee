"""What reading the source finds: a pattern, where it stands, how often it runs and why we think so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Frequency(Enum):
    """How often a line runs while a model is trained or evaluated."""

    NEVER = "never"
    ONCE = "once"
    EPOCH = "every epoch"
    RARE = "now and then"
    BATCH = "every batch"
    SAMPLE = "every sample"
    ELEMENT = "every element"

    @property
    def rank(self) -> int:
        return _FREQUENCIES[self]


_FREQUENCIES = {frequency: number for number, frequency in enumerate(Frequency)}


class Confidence(Enum):
    """Low is shown with --pedantic only."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"

    @property
    def rank(self) -> int:
        return _CONFIDENCES[self]


_CONFIDENCES = {confidence: number for number, confidence in enumerate(Confidence)}


class Applicability(Enum):
    """Safe: the training gives the same losses. Unsafe: it may round or print otherwise. Display-only: no repair."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    DISPLAY_ONLY = "display-only"


@dataclass(frozen=True)
class Step:
    """One link of the chain from a training loop to the finding."""

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class ScanFinding:
    """One finding. Lines count from 1, columns from 1, in characters."""

    code: str
    name: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    message: str
    repair: str
    frequency: str
    confidence: str
    applicability: str
    why: tuple[Step, ...] = ()
    source: str = ""  # the line as it stands, for baselines and reports
    hints: Mapping[str, str] = field(default_factory=dict)  # for the rule's own fix
    block: bool = False  # a whole loop or function: its first line is meant
    cell: int = 0  # of a notebook, from 1; lines then count in it

    @property
    def last_line(self) -> int:
        """The last line that is meant."""
        return self.line if self.block else self.end_line


@dataclass(frozen=True)
class Unread:
    """A file that could not be scanned, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Scan:
    """One scan of a tree."""

    findings: tuple[ScanFinding, ...]
    unread: tuple[Unread, ...] = ()
    files: int = 0
    lines: int = 0
    known: int = 0  # findings that a baseline knows, not among them
