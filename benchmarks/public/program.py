"""Public training programs: where each is from, how it is started, what it needs. One TOML file each."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "programs"
KEYS = {
    "repository",
    "commit",
    "command",
    "progress",
    "kinds",
    "folder",
    "data",
    "place",
    "packages",
    "varies",
    "environment",
    "cuda",
}


class ProgramWrong(Exception):
    """A program's file cannot be used; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Program:
    name: str
    repository: str  # owner/name
    commit: str
    command: tuple[str, ...]  # from `python` on; {data} is the folder of its data, {root} that of its code
    progress: str  # a line of output with this shows how far it is
    kinds: tuple[str, ...]
    folder: str  # where it is started, in the repository
    data: str | None  # the module of data/ that makes what it reads
    place: str | None  # where in the repository the data is put; None where {data} in the command says it
    packages: tuple[str, ...]  # it imports, besides torch and numpy
    varies: tuple[str, ...]  # what differs from run to run in a line: times, rates
    environment: dict[str, str]
    cuda: tuple[str, ...] | None  # the command on a GPU; None where it is the same


def programs(names: Iterable[str] = (), folder: Path = FOLDER) -> list[Program]:
    """Return the programs named, or all."""
    known = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    wanted = list(names) or list(known)
    if missing := [name for name in wanted if name not in known]:
        raise ProgramWrong(f"there is no program {missing[0]}; known: {', '.join(known)}")
    return [read(known[name]) for name in wanted]


def read(path: Path) -> Program:
    try:
        found = _toml().loads(path.read_text())
        return _program(path.stem, found)
    except (KeyError, ValueError, re.error) as error:
        raise ProgramWrong(f"{path.name}: {error!r}") from None


def _program(name: str, found: dict[str, Any]) -> Program:
    if unknown := set(found) - KEYS:
        raise ProgramWrong(f"{name}.toml: unknown {', '.join(sorted(unknown))}")
    if not re.fullmatch("[0-9a-f]{40}", found["commit"]):
        raise ProgramWrong(f"{name}.toml: commit must be a full hash")
    for pattern in (found["progress"], *found.get("varies", ())):
        re.compile(pattern)
    cuda = found.get("cuda")
    return Program(
        name=name,
        repository=found["repository"],
        commit=found["commit"],
        command=tuple(found["command"]),
        progress=found["progress"],
        kinds=tuple(found["kinds"]),
        folder=found.get("folder", "."),
        data=found.get("data"),
        place=found.get("place"),
        packages=tuple(found.get("packages", ())),
        varies=tuple(found.get("varies", ())),
        environment=dict(found.get("environment", {})),
        cuda=None if cuda is None else tuple(cuda),
    )


def _toml() -> Any:
    for name in ("tomllib", "tomli"):  # Python 3.10 has none of its own
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ProgramWrong("this Python cannot read TOML; type: pip install tomli")
