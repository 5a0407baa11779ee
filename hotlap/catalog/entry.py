"""What a catalogue entry declares about itself."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import TYPE_CHECKING, Any

from hotlap.records.plan import Expectation, Risk
from hotlap.records.text_enum import TextEnum

if TYPE_CHECKING:
    from hotlap.records.observation import Observation
    from hotlap.runtime.site import Site


class NotAValue(ValueError):
    """Raised for text that is not a valid value; the message says what would be."""


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
            raise NotAValue(f"{text!r} is not one of {', '.join(self.names)}")
        return text

    def __str__(self) -> str:
        return "|".join(self.names)


class Stage(IntEnum):
    """The order in which entries are applied: one that wraps the work of others comes after them."""

    PROCESS = auto()  # what torch reads when it starts
    DATASET = auto()  # items that are cached
    BATCH = auto()  # how a batch reaches the device
    SETTINGS = auto()  # torch's switches
    LOADER = auto()  # arguments of DataLoaders
    MODEL = auto()  # layers, their precision and their memory layout
    LOOP = auto()  # what else the loop does
    COMPILED = auto()  # the model compiled, as the earlier stages left it
    CAPTURED = auto()  # the model captured as CUDA graphs
    LAST = auto()


class When(TextEnum):
    """When an entry can be switched on or off while the program trains."""

    STEP = "between any two steps"
    LOADER = "where a loader is iterated anew"
    START = "at the start only"


def within(package: str, file: str, name: str = "") -> Callable[..., Any]:
    """Return a function that imports an entry's file on the first call, since most commands and programs need few of
    them, and calls `name` in it, by default the function named like the file.
    """

    def call(*args: Any) -> Any:
        return getattr(importlib.import_module(f"{package}.{file}"), name or file)(*args)

    return call


Values = WholeNumber | OneOf
Environment = Callable[[Any, Mapping[str, str]], Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One optimisation. Its folder's name is its name, with hyphens for underscores.

    `apply(site)` is called once torch is imported, subscribes to seams, and reports its outcome through the site, at
    once or when it is known. `environment(value, environ)` returns variables to set before the command starts, for what
    torch reads only then. `detect(observation)` returns the most it could gain, or None if it could gain nothing.
    """

    code: str  # never reused for another entry
    title: str
    risk: Risk
    apply: Callable[[Site], None]
    detect: Callable[[Observation], Expectation | None]
    environment: Environment | None = None
    values: Values | None = None
    tries: Callable[[Observation], tuple[str, ...]] | None = (
        None  # values that a tune tries; None: the entry finds its own
    )
    device: str | None = None  # "cuda": needs a GPU
    torch: tuple[int, int] = (2, 6)  # the oldest version it works with
    stage: Stage = Stage.LOOP
    after: tuple[str, ...] = ()  # names of entries of the same stage
    conflicts: frozenset[str] = frozenset()  # names; one side naming the other is enough
    reach: float = 0.3  # usual gain as a share of the possible gain: a tune tries the most promising first
    automatic: bool = True  # part of --plan safe or fast, by its risk
    when: When = When.STEP
    alone: bool = False  # tried by itself while a program trains; the others are tried together
    prepares: float = 0.0  # seconds, roughly, that it takes to start: such entries are tried after the others
    ahead: Callable[[Site], None] | None = None  # begins what can be prepared beside the training; `coming` until then
    retained: bool = False  # what it built is kept while it is off

    def parse(self, text: str | None) -> Any:
        """Return the value that `text` stands for. None means that the entry finds its own."""
        if text is None:
            return None
        if self.values is None:
            raise NotAValue("it takes no value")
        return self.values.parse(text)
