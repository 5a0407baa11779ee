"""What claims.toml says: the claims of the five reports, and the changes by which each is measured alone.

A change is made to a copy of the workloads, so what is trained is naive.py and nothing but the change: pieces of source
put in place of others (`edits`), arguments of naive.py (`arguments`, by size where they differ), or other changes
together (`together`). `hotlap run --with` is not used: what hotlap itself costs would count as the change's.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BOOK = Path(__file__).resolve().parent / "claims.toml"
CPU, CUDA = "cpu", "cuda"
TRAINING, VALIDATION, START, MEMORY, RECIPE = "training", "validation", "start-up", "memory", "recipe"
KINDS = (TRAINING, VALIDATION, START, MEMORY, RECIPE)
STARTUP, HOST_MEMORY, DEVICE_MEMORY, PRINTED = "startup", "host-memory", "device-memory", "_seconds"
MEASURES = (TRAINING, STARTUP, HOST_MEMORY, DEVICE_MEMORY)  # or the name of seconds a run prints: valid_seconds
USUAL = {TRAINING: TRAINING, START: STARTUP, RECIPE: TRAINING}  # by kind, where a claim names no measure


class BookWrong(ValueError):
    """claims.toml contradicts itself or the workloads; the message says where."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    file: str
    old: str
    new: str
    times: int  # the old text must be there exactly so often


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One change of a workload."""

    name: str
    workload: str
    arguments: Mapping[str, tuple[str, ...]]  # of naive.py, by size; "" for every other size
    edits: tuple[Edit, ...]
    together: tuple[str, ...]
    against: str | None  # the change it is compared with, where naive cannot be
    undone: bool  # naive.py has it already: the change takes it away, and the gain is read backwards
    not_on: Mapping[str, str]  # device → why it is not measured there


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """How a workload is trained, by naive and by every change of it."""

    name: str
    epochs: Mapping[str, int]  # by size
    edits: tuple[Edit, ...]  # made to naive as well: what prints a time that naive.py does not


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    report: str
    change: str  # what the report would do, in a few words
    says: str  # the gain in the report's words
    kind: str
    factor: tuple[float, float] | None  # the same as before / after; None where the report gives no figure
    part: str | None  # what the factor is of, where the report speaks of less than what is measured
    measured_by: str | None  # the name of a change
    measure: str
    not_measured: str | None
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Book:
    reports: Mapping[str, str]  # number → title
    does_not_follow: Mapping[str, str]  # number → what small data cannot tell of the report's
    tasks: Mapping[str, Task]
    changes: Mapping[str, Change]
    claims: tuple[Claim, ...]

    def parts(self, change: Change, device: str) -> list[Change]:
        """Return the change itself and those it combines, without what is not measured on the device."""
        parts = [part for name in change.together for part in self.parts(self.changes[name], device)]
        unique = {part.name: part for part in parts if device not in part.not_on}
        return [*unique.values(), change]

    def runnable(self, device: str) -> list[Change]:
        return [change for change in self.changes.values() if device not in change.not_on]

    def epochs(self, workload: str, size: str) -> int:
        return self.tasks[workload].epochs[size]

    def edits(self, change: Change | None, workload: str, device: str) -> list[Edit]:
        """Return all edits of a run; those of naive if there is no change."""
        own = [edit for part in self.parts(change, device) for edit in part.edits] if change else []
        return [*self.tasks[workload].edits, *own]

    def arguments(self, change: Change, device: str, size: str) -> list[str]:
        parts = self.parts(change, device)
        return [word for part in parts for word in part.arguments.get(size, part.arguments.get("", ()))]

    def fingerprint(self, change: Change, device: str, size: str) -> str:
        """Return a fingerprint that differs whenever something different would be run."""
        edits = [(edit.file, edit.old, edit.new, edit.times) for edit in self.edits(change, change.workload, device)]
        words = [change.workload, change.against, self.arguments(change, device, size), edits]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]


def read(path: Path = BOOK) -> Book:
    toml = _toml()
    found = toml.loads(path.read_text(encoding="utf-8"))
    _known(found, ("reports", "does_not_follow", "workloads", "changes", "claims"), path.name)
    tasks = {name: _task(name, table) for name, table in found["workloads"].items()}
    changes = {name: _change(name, table, tasks) for name, table in found["changes"].items()}
    claims = tuple(_claim(table, found["reports"], changes) for table in found["claims"])
    for change in changes.values():
        named = [*change.together, *([change.against] if change.against else [])]
        missing = [name for name in named if name not in changes]
        _require(not missing, f"{change.name} names {', '.join(missing)}, which is not there")
    _require(
        set(found["does_not_follow"]) == set(found["reports"]), f"{path.name}: does_not_follow names other reports"
    )
    return Book(
        reports=found["reports"], does_not_follow=found["does_not_follow"], tasks=tasks, changes=changes, claims=claims
    )


def make(place: Path, workload: str, edits: Iterable[Edit], into: Path) -> Path:
    """Make a copy of the workloads with the edits applied; the original does not change."""
    shutil.copytree(place, into, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in edits:
        path = into / workload / edit.file
        path.write_text(edited(path.read_text(encoding="utf-8"), edit), encoding="utf-8")
    return into


def edited(text: str, edit: Edit) -> str:
    found = text.count(edit.old)
    if found != edit.times:
        raise BookWrong(f"{edit.file} contains this text {found} times, not {edit.times} times:\n{edit.old}")
    return text.replace(edit.old, edit.new)


def source(place: Path, workload: str) -> str:
    """Return the source of naive.py and all it imports from the workloads; other arms' files do not count."""
    found: dict[str, bytes] = {}
    waiting = [place / workload / "naive.py"]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(place).as_posix()
        if name not in found:
            found[name] = path.read_bytes()
            beside = [folder / f"{module}.py" for module in _imported(found[name]) for folder in (path.parent, place)]
            waiting += [path for path in beside if path.is_file()]
    digest = hashlib.sha256()
    for name, text in sorted(found.items()):
        digest.update(name.encode() + b"\0" + text + b"\0")
    return digest.hexdigest()[:16]


def _imported(text: bytes) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _toml() -> Any:
    for name in ("tomllib", "tomli"):  # Python 3.10 has none of its own
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise BookWrong("this Python cannot read TOML; type: pip install tomli")


def _task(name: str, found: Mapping[str, Any]) -> Task:
    _known(found, ("epochs", "edits"), f"workload {name}")
    return Task(name=name, epochs=found["epochs"], edits=_edits(found.get("edits", [])))


def _change(name: str, found: Mapping[str, Any], tasks: Mapping[str, Task]) -> Change:
    _known(found, ("workload", "arguments", "edits", "together", "against", "undone", "cpu", "cuda"), f"change {name}")
    _require(found["workload"] in tasks, f"{name} is of the workload {found['workload']!r}, which is not there")
    arguments = found.get("arguments", [])
    by_size = arguments if isinstance(arguments, dict) else {"": arguments}
    return Change(
        name=name,
        workload=found["workload"],
        arguments={size: tuple(words) for size, words in by_size.items()},
        edits=_edits(found.get("edits", [])),
        together=tuple(found.get("together", ())),
        against=found.get("against"),
        undone=found.get("undone", False),
        not_on={device: found[device] for device in (CPU, CUDA) if device in found},
    )


def _edits(found: Sequence[Sequence[Any]]) -> tuple[Edit, ...]:
    return tuple(Edit(file=edit[0], old=edit[1], new=edit[2], times=(*edit, 1)[3]) for edit in found)


def _claim(found: Mapping[str, Any], reports: Mapping[str, str], changes: Mapping[str, Change]) -> Claim:
    what = f"claim {found.get('change')!r}"
    names = ("report", "change", "says", "kind", "factor", "of", "by", "measure", "not_measured", "why")
    _known(found, names, what)
    _require(found["report"] in reports, f"{what} is of report {found['report']!r}, which is not there")
    _require(found["kind"] in KINDS, f"{what} is of kind {found['kind']!r}; there are {', '.join(KINDS)}")
    _require(("by" in found) != ("not_measured" in found), f"{what} needs either `by` or `not_measured`")
    by = found.get("by")
    _require(by is None or by in changes, f"{what} is measured by {by!r}, which is not there")
    measure = found.get("measure", USUAL.get(found["kind"], ""))
    known = measure in MEASURES or measure.endswith(PRINTED)
    _require(by is None or known, f"{what} has the measure {measure!r}; there are {', '.join(MEASURES)}, …{PRINTED}")
    factor = found.get("factor")
    return Claim(
        report=found["report"],
        change=found["change"],
        says=found["says"],
        kind=found["kind"],
        factor=None if factor is None else (float(factor[0]), float(factor[1])),
        part=found.get("of"),
        measured_by=by,
        measure=measure,
        not_measured=found.get("not_measured"),
        why=found["why"],
    )


def _known(found: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    unknown = [name for name in found if name not in names]
    _require(not unknown, f"{where} has {', '.join(unknown)}; it may have {', '.join(names)}")


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise BookWrong(text)
