"""Locates the proven plan of a command, and checks that it is the user's own and still holds."""

from __future__ import annotations

import getpass
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from hotlap.records import private
from hotlap.records.plan import Origin, Plan
from hotlap.version import __version__

MOST_FILES = 2000
PASSED_OVER = {"__pycache__", "node_modules", "site-packages", "build", "dist"}
MACHINE_ID = Path("/etc/machine-id")


def place(home: Path, command: Sequence[str]) -> Path:
    """Return the file for the plan of a command; it depends on the current directory too."""
    key = _digest("\0".join((private.current_folder(), *command)).encode(errors="surrogateescape"))
    return home / "plans" / f"{key[:16]}.json"


def origin() -> Origin:
    """Return who proves a plan, where, when, and with which hotlap."""
    return Origin(
        uid=os.getuid(),
        user=_user(),
        machine=machine(),
        directory=private.current_folder(),
        when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        hotlap=__version__,
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a uid that has no name
        return str(os.getuid())


def machine() -> str:
    """Return a hash of the machine's id; the id itself stays private, as plans may be shared."""
    own = b""
    with suppress(OSError):
        own = MACHINE_ID.read_bytes().strip()
    return _digest(b"hotlap " + (own or os.uname().nodename.encode()))[:16]


def source_hash(command: Sequence[str]) -> str:
    """Hash the Python files beside and below the command's script, or in the current folder for `python -m`."""
    digest = hashlib.sha256()
    root = _root(command)
    for path in sorted(_sources(root)):
        with suppress(OSError):  # a dangling link, or a file we may not read
            if stat.S_ISREG(path.stat().st_mode):  # reading a pipe would block
                line = f"{path.relative_to(root)} {_digest(path.read_bytes())}\n"
                digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def difference(plan: Plan, command: Sequence[str]) -> str | None:
    """Name the first respect in which this run differs from what a signed plan was proven for, or return None."""
    proven, by = plan.proven, plan.origin
    if proven is None or by is None:
        return None
    if by.uid != os.getuid():
        return f"another user ({by.user})"
    if by.machine != machine():
        return "another machine"
    if by.directory != private.current_folder():
        return f"another folder ({by.directory})"
    if by.hotlap != __version__:
        return f"another hotlap ({by.hotlap})"
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
        folders[:] = sorted(child for child in folders if child not in PASSED_OVER and not child.startswith("."))
        for name in sorted(files):
            if name.endswith(".py"):
                yield Path(folder) / name
                found += 1
        if found > MOST_FILES:
            return


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
