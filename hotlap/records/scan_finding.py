"""What a scan of the source finds: a pattern, where it is, how often it runs and how that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hotlap.records.text_enum import TextEnum


class Frequency(TextEnum):
    """How often a line runs while a model is trained or evaluated."""

    NEVER = "never"
    ONCE = "once"
    FILE = "once per file"
    TRAINING = "once per training"
    EPOCH = "every epoch"
    RARE = "now and then"
    BATCH = "every batch"
    SAMPLE = "every sample"
    ELEMENT = "every element"

    rank: int  # from NEVER on


for _number, _frequency in enumerate(Frequency):
    _frequency.rank = _number


class Confidence(TextEnum):
    """How sure a finding is; low confidence is shown with --pedantic only."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"

    rank: int  # from LOW on


for _number, _confidence in enumerate(Confidence):
    _confidence.rank = _number


class Severity(TextEnum):
    """How much time the pattern usually takes where it is found."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"

    @property
    def rank(self) -> int:
        return _SEVERITIES[self]


_SEVERITIES = {severity: number for number, severity in enumerate(Severity)}


class Applicability(TextEnum):
    """Safe: losses stay the same. Unsafe: rounding or output may change. Display-only: there is no automatic repair."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    DISPLAY_ONLY = "display-only"


@dataclass(frozen=True)
class Step:
    """One link of the chain from a training loop to the finding."""

    path: str
    line: int
    text: str
    file_line: int = 0  # in a notebook: the line of its file


@dataclass(frozen=True)
class ScanFinding:
    """One finding. Lines and columns count from 1, columns in characters."""

    code: str
    name: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    message: str
    repair: str
    frequency: Frequency
    confidence: Confidence
    applicability: Applicability
    why: tuple[Step, ...] = ()
    source: str = ""  # the text of the line, for baselines and reports
    hints: Mapping[str, str] = field(default_factory=dict)  # for the rule's own fix
    block: bool = False  # a whole loop or function, reported at its first line
    cell: int = 0  # cell of a notebook, from 1; lines then count within it
    file_line: int = 0  # of a notebook: the line of its file, which other tools show
    severity: Severity = Severity.MEDIUM
    runs_itself: bool = True  # False: the frequency is that of what the line makes, such as a loader
    ms_per_step: float | None = None  # as measured by a profile; None: nothing was measured
    measured: str = ""  # the same in words, with what the time is
    ran: bool | None = None  # whether the profile saw the line run; None: nobody looked

    @property
    def last_line(self) -> int:
        """The last line that the finding covers."""
        return self.line if self.block else self.end_line


@dataclass(frozen=True)
class Unread:
    """A file that could not be scanned, and why."""

    path: str
    reason: str
    whole: bool = True  # False if only one rule failed, or if it is a folder


@dataclass(frozen=True)
class Scan:
    """One scan of a tree."""

    findings: tuple[ScanFinding, ...]
    unread: tuple[Unread, ...] = ()
    files: int = 0
    lines: int = 0
    known: int = 0  # findings hidden by a baseline, not among `findings`
    profile: str = ""  # the run whose measurements the findings carry, in words

    @property
    def failed(self) -> int:
        """How many files could not be scanned at all."""
        return len({unread.path for unread in self.unread if unread.whole})

    @property
    def read(self) -> int:
        return max(self.files - self.failed, 0)
