"""What hotlap says inside a process goes to the stderr that it was started with, and nowhere else.

A program may read the output of a process that it starts: there nothing of ours may be.
"""

from __future__ import annotations

import os
import sys

from hotlap.records.visible import visible

STDERR = 2
_ours: tuple[int, ...] = ()  # where the command's stderr led when hotlap was started


def ears() -> tuple[int, ...]:
    """Where stderr of this process leads."""
    try:
        found = os.fstat(STDERR)
    except OSError:
        return ()
    return found.st_dev, found.st_ino


def speak_to(ours: tuple[int, ...]) -> None:
    global _ours
    _ours = ours


def _is_bar_drawn() -> bool:
    """Whether a progress bar of tqdm waits at the end of its line, on which nothing of ours may begin."""
    bars = getattr(getattr(sys.modules.get("tqdm.std"), "tqdm", None), "_instances", ())
    return any(not getattr(bar, "disable", True) for bar in list(bars))


def say(*lines: str) -> None:
    """To the stream itself: what a program has put in place of sys.stderr is its own. A notebook has no other."""
    if _ours and ears() != _ours:
        return
    text = "\n" * _is_bar_drawn() + "".join(f"hotlap: {visible(line)}\n" for line in lines)
    try:
        if _ours:
            os.write(STDERR, text.encode("utf-8", "backslashreplace"))
        else:
            sys.stderr.write(text)
    except (OSError, ValueError, AttributeError):
        return  # stderr closed or replaced by something that cannot write
