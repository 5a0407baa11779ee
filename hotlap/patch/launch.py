"""Starting the user's command the way they would, with the boot folder ahead on the Python path."""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import wrapt

from hotlap.errors import CommandNotFound, CommandNotRunnable, UnknownName

BOOT = Path(__file__).parent / "boot"


def resolve(command: Sequence[str]) -> str:
    """The program to execute, or one clear line about why there is none."""
    program = command[0]
    found = shutil.which(program)
    if found:
        return found
    if program.startswith("-"):
        raise UnknownName(f"no such option: {program}; see --help, and put the command after the options")
    if Path(program).is_dir():
        raise CommandNotRunnable(f"{program} is a folder; give a command, such as: python {program}/train.py")
    if Path(program).exists():
        hint = f"python {program}" if program.endswith(".py") else f"chmod +x {program}"
        raise CommandNotRunnable(f"{program} is not executable; type: {hint}")
    raise CommandNotFound(f"command not found: {program}{_suggestion(program)}")


def _suggestion(program: str) -> str:
    if program in ("python", "python3"):
        other = "python3" if program == "python" else "python"
        return f"; type: {other}" if shutil.which(other) else "; give the path of the interpreter"
    near = difflib.get_close_matches(program, _programs(), n=1, cutoff=0.75)
    return f"; did you mean: {near[0]}" if near else "; check the spelling or give its full path"


def _programs() -> set[str]:
    names: set[str] = set()
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder and Path(folder).is_dir():
            names.update(path.name for path in Path(folder).iterdir())
    return names


def environment(session_file: Path, base: Mapping[str, str], extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The user's environment, what the boot file needs and what optimisations ask for; every child inherits it."""
    path = base.get("PYTHONPATH")
    return {
        **base,
        **(extra or {}),
        "PYTHONPATH": f"{BOOT}{os.pathsep}{path}" if path else str(BOOT),
        "HOTLAP_SESSION": str(session_file),
        "HOTLAP_WRAPT": str(Path(wrapt.__file__).parents[1]),
    }


def start(
    command: Sequence[str], session_file: Path, quiet: bool = False, extra: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """The command in our own process group, on our own streams (or on none when quiet)."""
    stream = subprocess.DEVNULL if quiet else None
    try:
        return subprocess.Popen(
            list(command),
            executable=resolve(command),
            env=environment(session_file, os.environ, extra),
            stdin=stream,
            stdout=stream,
            stderr=stream,
        )
    except OSError as error:
        raise CommandNotRunnable(f"cannot run {command[0]}: {error.strerror}; check its first line") from error
