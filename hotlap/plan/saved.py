"""The proven plan of a command, kept beside its runs, and whether the command is still the one it was proven for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hotlap.model.plan import Plan

MOST_FILES = 2000
PASSED_OVER = {"__pycache__", "node_modules", "site-packages", "build", "dist"}


def place(home: Path, command: Sequence[str]) -> Path:
    """Where the plan of a command is kept."""
    key = _digest("\0".join(command).encode())
    return home / "plans" / f"{key[:16]}.json"


def source_hash(command: Sequence[str]) -> str:
    """Of the Python files beside and below the command's script; of the current folder for `python -m`."""
    digest = hashlib.sha256()
    root = _root(command)
    for path in sorted(_sources(root)):
        with suppress(OSError):  # a dangling link, or a file we may not read
            digest.update(f"{path.relative_to(root)} {_digest(path.read_bytes())}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def difference(plan: Plan, command: Sequence[str]) -> str | None:
    """What is known before the command starts to differ from what the plan was proven for."""
    proven = plan.proven
    if proven is None:
        return None
    if proven.command != tuple(command):
        return f"another command ({' '.join(proven.command)})"
    if proven.source != source_hash(command):
        return "other source code"
    return None


def _root(command: Sequence[str]) -> Path:
    scripts = [Path(word) for word in command if word.endswith(".py") and Path(word).is_file()]
    return scripts[0].resolve().parent if scripts else Path.cwd()


def _sources(root: Path) -> Iterator[Path]:
    found = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(one for one in folders if one not in PASSED_OVER and not one.startswith("."))
        for name in sorted(files):
            if name.endswith(".py"):
                yield Path(folder) / name
                found += 1
        if found > MOST_FILES:
            return


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
