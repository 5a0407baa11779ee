"""Starts commands: as the user would, with the boot folder first on the Python path; or in a session of their own."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, NoReturn

from hotlap.errors import CommandNotFound, CommandNotRunnable, UnknownName

BOOT = Path(__file__).parents[1] / "patch" / "boot"
DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # a program that replaces this process would inherit that


def resolve(command: Sequence[str]) -> str:
    """Return the path of the program to execute, or raise an error that says why there is none."""
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
        alternative = "python3" if program == "python" else "python"
        return f"; type: {alternative}" if shutil.which(alternative) else "; give the path of the interpreter"
    return "; check the spelling or give its full path"


def environment(session_file: Path, base: Mapping[str, str], extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the user's environment plus what the boot file and the optimisations need; every child inherits it."""
    path = base.get("PYTHONPATH")
    return {
        **base,
        **(extra or {}),
        "PYTHONPATH": f"{BOOT}{os.pathsep}{path}" if path else str(BOOT),
        "HOTLAP_SESSION": str(session_file),
    }


def start(
    command: Sequence[str], session_file: Path, quiet: bool, mask: Iterable[signal.Signals | int]
) -> subprocess.Popen[bytes]:
    """Start the command in our process group, on our streams (or on none if quiet), with these signals blocked."""
    stream = subprocess.DEVNULL if quiet else None
    try:
        return subprocess.Popen(
            list(command),
            executable=resolve(command),
            env=environment(session_file, os.environ),
            stdin=stream,
            stdout=stream,
            stderr=stream,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
        )
    except OSError as error:
        raise _not_runnable(command, error) from error


def start_apart(
    command: Sequence[str],
    environ: Mapping[str, str],
    errors: IO[str] | int = subprocess.PIPE,
    at_our_death: signal.Signals | None = None,
) -> subprocess.Popen[bytes]:
    """Start the command in its own session, to be ended as one; Ctrl-C reaches only us, and we read its output.

    `at_our_death` is the signal it gets if we are killed and cannot end it; Linux only.
    """
    try:
        return subprocess.Popen(
            list(command),
            executable=resolve(command),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            preexec_fn=None if at_our_death is None else partial(_die_with_parent, at_our_death),
        )
    except OSError as error:
        raise _not_runnable(command, error) from error


def _die_with_parent(sent: signal.Signals) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, sent)


def become(command: Sequence[str], session_file: Path, extra: Mapping[str, str]) -> NoReturn:
    """Replace this process with the command, so that nothing stands between it and its signals and job control."""
    program = resolve(command)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None: closed
            stream.flush()
    for name in IGNORED_BY_PYTHON:
        signal.signal(name, signal.SIG_DFL)
    try:
        os.execve(program, list(command), environment(session_file, os.environ, extra))
    except OSError as error:
        raise _not_runnable(command, error) from error


def _not_runnable(command: Sequence[str], error: OSError) -> CommandNotRunnable:
    return CommandNotRunnable(f"cannot run {command[0]}: {error.strerror}; check its first line")


def keeps_us_out(command: Sequence[str]) -> str | None:
    """Return the option that makes Python ignore its environment, and with it hotlap, or None."""
    if not Path(command[0]).name.startswith("python"):
        return None
    for word in command[1:]:
        if not word.startswith("-") or word.startswith("--") or word[1:2] in "cmWX":
            return None
        if any(letter in word for letter in "EIS"):
            return word
    return None
