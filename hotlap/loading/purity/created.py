"""What the code being read creates: functions, instances of the program's classes, transforms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hotlap.loading.purity.frames import Frame, Names
from hotlap.loading.purity.source import Definition
from hotlap.loading.purity.values import Value


@dataclass(eq=False)
class Closure:
    """A function that the code being read defines."""

    definition: Definition
    frame: Frame
    defaults: tuple[list[Value], Names]


@dataclass(eq=False)
class Instance:
    """An object of one of the program's classes, created by the code being read."""

    kind: type
    fields: Names = field(default_factory=dict)
    version: int = 0  # grows as more becomes known of a field
    born: int = 0  # the count of stores at its creation


@dataclass(frozen=True)
class Transform:
    """A library transform that the code creates and calls; what it does depends on its arguments alone."""

    in_place: bool


@dataclass(eq=False)
class Super:
    """What `super()` returns in a method of that class."""

    kind: type
    owner: Value


@dataclass(eq=False)
class Keywords:
    """The keyword arguments that a ** parameter received."""

    given: Names


@dataclass(eq=False)
class Bound:
    """A method of an object that the code creates, or of its base class."""

    owner: Value
    function: Any
