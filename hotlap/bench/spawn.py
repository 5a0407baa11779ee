"""Processes that leave nothing behind: ended with all they started, and when the bench itself is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from typing import IO

DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


def start(words: list[str], errors: IO[str] | int, farewell: int = signal.SIGKILL) -> subprocess.Popen[str]:
    """In a session of its own, its stdout readable line by line; `farewell` is what it gets when the bench dies."""
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        preexec_fn=partial(_die_with_parent, farewell) if sys.platform == "linux" else None,
    )


def end(process: subprocess.Popen[str]) -> None:
    """Kills what is left of it, whatever happened."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _die_with_parent(farewell: int) -> None:
    """A killed bench leaves no training behind to disturb the one that resumes it."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, farewell)
