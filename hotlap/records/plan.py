"""What is to be applied to a command, and with what outcome."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.records.text_enum import TextEnum


class Risk(TextEnum):
    """What an optimisation may change, which decides the rule for keeping it."""

    EXACT = "exact"  # same numbers, and no difference in anything that the program can see
    ROUNDING = "rounding"  # same mathematics in another order of operations, or a difference that the program can see
    NUMERIC = "numeric"  # lower precision
    TRAINING = "training"  # a different recipe: never automatic

    @property
    def rank(self) -> int:
        return list(Risk).index(self)


class Status(TextEnum):
    APPLIED = "applied"
    NO_EFFECT = "no effect"  # there is nothing that it could change
    REFUSED = "refused"  # it could be applied, but that would not be safe
    WITHDRAWN = "withdrawn"  # it failed and was undone


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One optimisation, by the name of its catalogue entry; without a value it chooses its own."""

    name: str
    value: str | None = None
    asked: bool = False  # named by the user (--with), which allows what a plan must not do on its own


@dataclass(frozen=True, kw_only=True, slots=True)
class Circumstances:
    """The conditions under which a plan was proven."""

    command: tuple[str, ...]
    source: str  # hash of the Python files of the command
    torch: str
    hardware: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """By whom, where, when and with which hotlap a plan was proven."""

    uid: int
    user: str
    machine: str  # a hash that identifies the machine
    directory: str
    when: str
    hotlap: str  # version


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    schema: int
    title: str  # the risk it allows, "asked for", or the tune it comes from
    choices: tuple[Choice, ...]
    proven: Circumstances | None = None  # None: chosen, not proven
    origin: Origin | None = None
    signature: str | None = None  # by the user's key; without one, the plan counts as not proven


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    name: str
    code: str
    status: Status
    why: str  # what was changed, or why not
    value: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes:
    """The outcomes in one process of the command."""

    schema: int
    pid: int
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What an entry expects to gain, judging by an observation."""

    most: float  # largest share of the step that it could save, 0 to 1
    why: str
