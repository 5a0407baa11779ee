"""The calls that are being read, and what is known of their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FunctionType

from hotlap.loading.purity.source import Definition
from hotlap.loading.purity.values import Value, either

Names = dict[str, Value]


class Frame:
    """The call of a function that is being read, or that a closure made in it may still read from."""

    def __init__(self, function: FunctionType, names: Names, definition: Definition, parent: Frame | None) -> None:
        self.function, self.names, self.definition, self.parent = function, names, definition, parent
        self.returned: list[Value] = []
        self.left: list[list[Names]] = []  # per loop: what is known at each break and continue
        self.tries: list[list[Names]] = []  # per try: what is known wherever an error may occur
        self.foreign: set[str] = set()  # names declared global or nonlocal
        self.line = definition.lineno
        self.changed = 0  # when a value was last written into
        self.captured = False  # whether a closure may read it later
        self.cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))


def joined(several: Sequence[Names]) -> Names:
    names = {name for branch in several for name in branch}
    return {name: either(branch[name] for branch in several if name in branch) for name in names}


def same_names(left: Names, right: Names) -> bool:
    return left.keys() == right.keys() and all(left[name].key() == right[name].key() for name in left)


def with_parents(frame: Frame | None) -> Iterator[Frame]:
    while frame is not None:
        yield frame
        frame = frame.parent
