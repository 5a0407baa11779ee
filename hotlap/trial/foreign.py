"""Notes the programs that the user's program starts: their writes are not diverted, so the user must be warned.

A Python among them is entered and diverted like the first. The others are noted by name, except those that only read.
"""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from hotlap.patch.imports import when_imported
from hotlap.patch.ledger import Ledger

FILE = "programs.txt"
READ_ONLY = frozenset(
    "git nvidia-smi rocm-smi lscpu uname hostname ldconfig objdump file which where env printenv ps free df cat ls "
    "sysctl sw_vers date whoami id locale gcc g++ cc c++ clang clang++ ld as ptxas nvcc ninja cuobjdump nvdisasm "
    "ffprobe true false test echo".split()
)
MOST_SHOWN = 4


class Foreign:
    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self._file, self._ledger = folder / FILE, ledger
        self._known: set[str] = set()

    def install(self) -> None:
        self._ledger.wrap(os, "system", self._system)
        when_imported("subprocess", self._subprocess)

    def _subprocess(self, module: Any) -> None:
        self._ledger.wrap(module.Popen, "__init__", self._popen)

    def _system(self, original: Any) -> Any:
        def system(command: Any) -> Any:
            self._note(first_word(command))
            return original(command)

        system.__wrapped__ = original  # type: ignore[attr-defined]
        return system

    def _popen(self, original: Any) -> Any:
        def __init__(popen: Any, args: Any, *rest: Any, **kwargs: Any) -> None:  # noqa: N807
            self._note(first_word(args))
            original(popen, args, *rest, **kwargs)

        __init__.__wrapped__ = original  # type: ignore[attr-defined]
        return __init__

    def _note(self, name: str) -> None:
        if not name or name in self._known or name in READ_ONLY or name.startswith("python"):
            return
        self._known.add(name)
        with suppress(OSError):
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, f"{name}\n".encode(errors="replace"))
            finally:
                os.close(descriptor)


def first_word(command: Any) -> str:
    """Return the program's name, or the first word of a shell command; empty if it cannot be read."""
    with suppress(TypeError, ValueError, IndexError):
        words = shlex.split(command) if isinstance(command, str) else [os.fsdecode(word) for word in command]
        if len(words) > 2 and Path(words[0]).name in ("sh", "bash") and words[1] == "-c":
            words = shlex.split(words[2])
        return Path(next((word for word in words if "=" not in word), "")).name
    return ""


def foreign(folder: Path) -> str | None:
    """Return one line about the programs started while observing, or None if there were none."""
    try:
        names = list(dict.fromkeys((folder / FILE).read_text(encoding="utf-8").split()))
    except OSError:
        return None
    shown = ", ".join(names[:MOST_SHOWN]) + (" …" if len(names) > MOST_SHOWN else "")
    return (
        f"the command starts other programs ({shown}), and hotlap does not keep what they write away from your files; "
        "if that matters, tune a command that does not start them"
    )
