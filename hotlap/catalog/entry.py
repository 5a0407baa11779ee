"""What a catalogue entry says of itself."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import TYPE_CHECKING, Any

from hotlap.records.plan import Expectation, Risk

if TYPE_CHECKING:
    from hotlap.records.observation import Observation
    from hotlap.runtime.site import Site


class NotAValue(ValueError):
    """The text given for a value, and what would have been one."""


@dataclass(frozen=True)
class WholeNumber:
    low: int
    high: int

    def parse(self, text: str) -> int:
        if not text.isdecimal() or not self.low <= int(text) <= self.high:
            raise NotAValue(f"{text!r} is not a whole number from {self.low} to {self.high}")
        return int(text)

    def __str__(self) -> str:
        return f"{self.low}…{self.high}"


@dataclass(frozen=True)
class OneOf:
    names: tuple[str, ...]

    def parse(self, text: str) -> str:
        if text not in self.names:
            raise NotAValue(f"{text!r} is none of {', '.join(self.names)}")
        return text

    def __str__(self) -> str:
        return "|".join(self.names)


class Stage(IntEnum):
    """In this order entries are applied: one that stands around the work of others comes after them."""

    PROCESS = auto()  # what torch reads when it starts
    DATASET = auto()  # items that are kept
    BATCH = auto()  # how a batch reaches the device
    SETTINGS = auto()  # switches of torch
    LOADER = auto()  # arguments of DataLoaders
    MODEL = auto()  # layers, and what they compute in
    LOOP = auto()  # what the loop does besides
    COMPILED = auto()  # the model as the stages before left it, compiled
    CAPTURED = auto()  # and recorded
    LAST = auto()


class When(str, Enum):
    """When it can be switched on or off while the program trains."""

    STEP = "between any two steps"
    LOADER = "where a loader is iterated anew"
    START = "at the start only"


def within(package: str, file: str, name: str = "") -> Callable[..., Any]:
    """A function of an entry's own file, called like the file if not named: imported when it is first called, since
    most commands and programs need few of them.
    """

    def call(*args: Any) -> Any:
        return getattr(importlib.import_module(f"{package}.{file}"), name or file)(*args)

    return call


Values = WholeNumber | OneOf
Environment = Callable[[Any, Mapping[str, str]], Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One optimisation. Its folder's name is its name, with hyphens for underscores.

    `apply(site)` is called once torch is imported, subscribes to seams, and tells its outcome through the site, at once
    or when it knows. `environment(value, environ)` gives variables to set before the command starts, for what torch
    reads only then. `detect(observation)` says what it could gain at most, or None where it could not.
    """

    code: str  # never used again for another entry
    title: str
    risk: Risk
    apply: Callable[[Site], None]
    detect: Callable[[Observation], Expectation | None]
    environment: Environment | None = None
    values: Values | None = None
    tries: Callable[[Observation], tuple[str, ...]] | None = None  # values a tune looks at; None: it finds its own
    device: str | None = None  # "cuda": needs a GPU
    torch: tuple[int, int] = (2, 6)  # the oldest it works with
    stage: Stage = Stage.LOOP
    after: tuple[str, ...] = ()  # names of the same stage
    conflicts: frozenset[str] = frozenset()  # names; one side naming the other is enough
    reach: float = 0.3  # of the most it could gain, what it usually does gain: a tune tries the likeliest first
    automatic: bool = True  # part of --plan safe or fast, by its risk
    when: When = When.STEP
    alone: bool = False  # tried by itself while a program trains; the others as one
    prepares: float = 0.0  # seconds, about, that it takes to begin; what it made is kept while it is switched off

    def parse(self, text: str | None) -> Any:
        """The value that a text means. None stands for 'find your own'."""
        if text is None:
            return None
        if self.values is None:
            raise NotAValue("it takes no value")
        return self.values.parse(text)
