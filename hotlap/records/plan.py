"""What is to be applied to a command, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Risk(str, Enum):
    """What an optimisation may change; it decides what must hold to keep it."""

    EXACT = "exact"  # same numbers, and the same in all else that the program can see
    ROUNDING = "rounding"  # same mathematics, other order of operations; or seen by the program in another way
    NUMERIC = "numeric"  # lower precision
    TRAINING = "training"  # another recipe: never automatic

    @property
    def rank(self) -> int:
        return list(Risk).index(self)


class Status(str, Enum):
    APPLIED = "applied"
    NO_EFFECT = "no effect"  # nothing here that it could change
    REFUSED = "refused"  # it could, but must not
    WITHDRAWN = "withdrawn"  # it failed and was taken back


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One optimisation, by the name of its catalogue entry; without a value it finds its own."""

    name: str
    value: str | None = None
    asked: bool = False  # named by the user (--with): it may then do what a plan must not do by itself


@dataclass(frozen=True, kw_only=True, slots=True)
class Circumstances:
    """What a plan was proven under."""

    command: tuple[str, ...]
    source: str  # hash of the Python files of the command
    torch: str
    hardware: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """By whom a plan was proven, where, when, and with what."""

    uid: int
    user: str
    machine: str  # a hash of what tells it from others
    directory: str
    when: str
    hotlap: str  # version


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    schema: int
    title: str  # the risk it allows, "asked for", or of which tune
    choices: tuple[Choice, ...]
    proven: Circumstances | None = None  # None: chosen, not proven
    origin: Origin | None = None
    signature: str | None = None  # by a key of the user's; what a file says without one counts as not proven


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    name: str
    code: str
    status: str  # of Status
    why: str  # what was changed, or why not
    value: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes:
    """Of one process of the command."""

    schema: int
    pid: int
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What an entry expects of itself, from an observation."""

    most: float  # share of the step it could save at the very most, 0 to 1
    why: str
