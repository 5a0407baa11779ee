"""Everything that fetching reads, and whether any of it has changed.

A study names the places that code reads: attributes, globals, class members, closure variables. Here each is stored
with its value. Checking the places takes microseconds and is done before every batch. The contents of containers and
the memory of tensors and arrays are compared in full at each epoch. Before every batch, small contents are compared in
full too; of an array with a row for each item, the rows of the batch; and of other large contents, a part in turn. If
there is little in total, each part must be compared before every batch in one of the first two ways, or nothing is
cached.

Tensors, arrays and tables are looked up where the program holds them, and released after each check: a program may
close, free or resize what it no longer uses.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from hotlap.loading.contents import SMALL, Contents, ListedRows, Memory, Part, is_tensor, weakly
from hotlap.loading.files import Files, is_no_data
from hotlap.loading.groups import ElementSums, RowSums
from hotlap.loading.purity import Study
from hotlap.loading.purity.objects import without_our_layers
from hotlap.loading.purity.plain import CONTAINERS, is_array, is_atom, is_record, is_table, same_atom
from hotlap.loading.purity.study import reference
from hotlap.loading.settings import settings
from hotlap.loading.subsets import Levels
from hotlap.loading.unsuited import Unfit

ABSENT: Any = object()
FREED: Any = object()  # in place of a value that the program has let go of, and perhaps replaced by None
ALWAYS, OFTEN = 80e-6, 0.25  # seconds, or share of fetching a batch, for comparing what is not read by rows
LITTLE = 64 << 10  # bytes, which take no longer to compare than some of them
LEAST_SECONDS, SHARE = 4e-3, 0.7  # seconds, or share of making an epoch's batches: longer comparisons do not pay


class State:
    """A snapshot of everything that the studies read."""

    def __init__(self, *studies: Study, contents: bool = True) -> None:
        self._places: list[Lookup] = []
        self._with_contents = contents
        self._contents = Contents()
        opened = {key: path for study in studies for key, (_, _, path) in study.opened.items()}
        for study in studies:
            for (owner_id, name), (owner, _) in study.attributes.items():
                if (found := owner()) is None:
                    continue
                if (owner_id, name) in opened:
                    self._places.append(OpenedPlace(found, name, opened[owner_id, name]))
                else:
                    self._add(ClassPlace(found) if name == "__class__" else AttributePlace(found, name))
            for space, name in study.names.values():
                self._add(NamePlace(space, name))
            for cell in study.cells.values():
                self._add(CellPlace(cell))
            for container in study.containers.values() if contents else ():
                self._contents.add(container)
        self._contents.settle()
        self._by_row = {identity for study in studies for identity in study.by_row}
        self._by_row -= {identity for study in studies for identity in study.as_whole}
        self._rows: list[
            tuple[RowSums | ElementSums | ListedRows, int]
        ] = []  # with the level of subsets each belongs to
        self._watched: bool | None = None  # None: not watched closely; else whether by rows

    def _add(self, place: Lookup) -> None:
        self._places.append(place)
        if self._with_contents and is_plain_holder(value := place.found()):
            self._contents.add(value, find=place.found)

    def closely(self, batch_seconds: float, find: Callable[[], Levels] | None = None) -> None:
        """Decide what is compared before each batch, given how long the program takes to fetch one.

        Containers with an element for each item are compared by the elements of the batch, and all else in full;
        raises Unfit if that takes too long. `find` returns the levels of the items, if batches are made from
        copies.
        """
        by_rows = find is not None
        if self._watched is not None and self._watched >= by_rows:
            return
        allowed = max(ALWAYS, OFTEN * batch_seconds)
        left = self._contents.parts
        if self._contents.bytes <= LITTLE:
            left = self._contents.compare_always(left, allowed)
        if left and find is not None:
            left = self._watch_rows(find())
        if left:
            left = self._contents.compare_always(left, allowed)
        if left and (find is not None or self._contents.bytes <= SMALL):
            raise Unfit(
                f"{sum(part.bytes for part in left) / 1e6:,.1f} MB of what it reads are not read row by row, "
                "and checking them for changes before each batch takes too long"
            )
        self._watched = by_rows

    def _watch_rows(self, levels: Levels) -> list[Part]:
        """Compare parts by rows where possible; return those that may not be read by the rows of a batch alone."""
        rest = []
        for part in self._contents.parts:
            level, is_by_row = levels.of_list.get(part.of, levels.last), part.of in self._by_row
            found = part.rows(levels.totals[level]) if is_by_row else None
            if found is None:
                rest.append(part)
            else:
                self._rows.append((found, level))
        return rest

    def changed_in(self, rows: list[Any]) -> str | None:
        """Compare the rows of a batch, given for each level of subsets; called if nothing else has changed."""
        return Memory.name if any(sums.differ(rows[level]) for sums, level in self._rows) else None

    @property
    def is_by_rows(self) -> bool:
        return bool(self._rows)

    def require_worth(self, epoch_seconds: float) -> None:
        """Raise Unfit if comparing everything before and after each epoch takes longer than it saves."""
        if 2 * self._contents.seconds > max(LEAST_SECONDS, SHARE * epoch_seconds):
            raise Unfit(
                f"checking it for changes at each epoch takes {2 * self._contents.seconds:.2f} s "
                f"({self._contents.bytes / 1e6:,.0f} MB), and fetching it {epoch_seconds:.2f} s"
            )

    def changed_now(self) -> str | None:
        """Return what has changed; called before each batch."""
        for place in self._places:
            if not place.holds():
                return place.name
        return self._contents.moved() or self._contents.always_differ()

    def changed_at_epoch(self) -> str | None:
        """Compare everything and return what has changed; called at the start of an epoch."""
        for place in self._places:
            if not place.holds():
                return place.name
        return self._contents.differ()


class Watch(State):
    """A snapshot of everything that fetching depends on: what the studies read, files, and settings."""

    def __init__(self, torch: Any, *studies: Study, contents: bool = True) -> None:
        """Raises Unfit if changes would go unnoticed. `contents=False` is for callers that read the contents again."""
        super().__init__(*studies, contents=contents)
        self._torch = torch
        self._files: Files | None = None
        if any(study.reads_files for study in studies):
            texts = [text for study in studies for text in study.texts]
            folders = [folder for study in studies for folder in study.folders]
            self._files = Files(self._contents.texts(), texts, folders)
        self._settings = self._settings_now()

    @property
    def is_shared(self) -> bool:
        """Whether workers see changes within an epoch too: of files, and of memory that processes share."""
        return self._files is not None or self._contents.is_shared

    def require_watched(self, opened: list[str]) -> None:
        """Raise Unfit if fetching has read a file that is not watched."""
        for path in opened:
            if not (is_no_data(path) if self._files is None else self._files.covers(path)):
                raise Unfit(f"it reads {path}, where changes would go unnoticed")

    @property
    def found_late(self) -> bool:
        """Whether a change found at the start of an epoch may have happened during the previous one."""
        return self._files is not None and self._files.found_late

    def changed_now(self) -> str | None:
        if self._settings_now() != self._settings:
            return "a setting"
        return super().changed_now() or (None if self._files is None else self._files.differ_now())

    def changed_at_epoch(self) -> str | None:
        if self._settings_now() != self._settings:
            return "a setting"
        return super().changed_at_epoch() or (None if self._files is None else self._files.differ())

    def changed_elsewhere(self, at_epoch: bool) -> str | None:
        """Return what has changed that running workers see too."""
        found = self._contents.differ_shared()
        if found is not None or self._files is None:
            return found
        return self._files.differ() if at_epoch else self._files.differ_now()

    def _settings_now(self) -> tuple[Any, ...]:
        """Return what operations depend on besides their arguments."""
        here = None if self._files is None else os.getcwd()  # noqa: PTH109 called before each batch
        return (*settings(self._torch), here)


def is_plain_holder(value: Any) -> bool:
    kind = type(value)
    known = kind in CONTAINERS or is_array(kind) or is_table(kind) or is_record(kind) or is_atom(kind)
    return known or kind is bytearray


class Lookup:
    """A place where a value is looked up; it does not keep objects alive, unless they have no weak references."""

    name = ""

    def __init__(self) -> None:
        value = self.found()
        self._atom = is_atom(type(value))
        self._expected: Callable[[], Any] = _reference(value)
        self._unreferenced = id(value) if _is_unreferenced(value) else None

    def found(self) -> Any:
        raise NotImplementedError

    def holds(self) -> bool:
        now, then = self.found(), self._expected()
        if now is then or id(now) == self._unreferenced:
            return True
        if isinstance(now, MethodType) and isinstance(then, MethodType):
            return now.__func__ is then.__func__ and now.__self__ is then.__self__
        return self._atom and type(now) is type(then) and is_atom(type(now)) and same_atom(now, then)


def _is_unreferenced(value: Any) -> bool:
    """Return whether the value must not even be referenced weakly; its memory is compared instead.

    NumPy would then refuse to resize an array, and torch to swap a tensor.
    """
    if isinstance(value, type):
        return False
    if is_tensor(value):
        return True
    return type(value).__module__ == "numpy" and getattr(value, "ndim", 0) > 0 and value.nbytes <= SMALL


def _reference(value: Any) -> Callable[[], Any]:
    kind = type(value)
    if is_plain_holder(value) and not is_array(kind) and not is_table(kind):
        return lambda: value
    if _is_unreferenced(value):
        return lambda: ABSENT
    find = weakly(value)
    return lambda: FREED if (found := find()) is None else found


class AttributePlace(Lookup):
    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self.name = reference(owner), name
        super().__init__()

    def found(self) -> Any:
        owner = self._owner()
        held = getattr(owner, "__dict__", None)
        if isinstance(held, dict) and self.name in held:
            return held[self.name]
        for kind in type(owner).__mro__:
            member = vars(kind).get(self.name, ABSENT)
            if member is not ABSENT:
                if hasattr(type(member), "__set__") and not isinstance(member, property):
                    try:
                        return member.__get__(owner, kind)
                    except AttributeError:
                        return ABSENT
                return member
        return ABSENT


class OpenedPlace(AttributePlace):
    """An open file that appears with the first fetch; our own fetches close theirs again."""

    def __init__(self, owner: Any, name: str, path: str) -> None:
        super().__init__(owner, name)
        self._path = path
        self._opened: Callable[[], Any] = lambda: None

    def holds(self) -> bool:
        if super().holds():
            self._opened = lambda: None
            return True
        now, before = self.found(), self._opened()
        self._opened = weakly(now)
        return now is before or (before is None and self._is_of_its_path(now))

    def _is_of_its_path(self, handle: Any) -> bool:
        """Return whether the file is the one that the code opens, and not another that the program has put there."""
        file = getattr(handle, "file", handle)  # of an array in it
        name = getattr(file, "filename", None)
        return isinstance(name, str | os.PathLike) and os.path.realpath(name) == os.path.realpath(self._path)


class ClassPlace(AttributePlace):
    """The class of an object and its bases, and that its attributes are looked up in the usual way."""

    def __init__(self, owner: Any) -> None:
        super().__init__(owner, "__class__")
        self._looks_up, self._bases = type(owner).__getattribute__, type(owner).__mro__

    def holds(self) -> bool:
        if not super().holds():
            return False
        kind = type(self._owner())
        return kind.__getattribute__ is self._looks_up and kind.__mro__ is self._bases


class NamePlace(Lookup):
    def __init__(self, space: Mapping[str, Any], name: str) -> None:
        self._space, self.name = space, name
        super().__init__()

    def found(self) -> Any:
        return without_our_layers(self._space.get(self.name, ABSENT))

    def holds(self) -> bool:
        return self._space.get(self.name, ABSENT) is self._expected() or super().holds()


class CellPlace(Lookup):
    name = "a variable of a function"

    def __init__(self, cell: Any) -> None:
        self._cell = cell
        super().__init__()

    def found(self) -> Any:
        try:
            return self._cell.cell_contents
        except ValueError:
            return ABSENT
