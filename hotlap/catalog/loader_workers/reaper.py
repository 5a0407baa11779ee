"""Ends workers that outlive a killed training.

Torch's workers check every five seconds whether their parent lives. But one whose batch does not fit the pipe (arrays,
lists, text: anything but tensors) waits forever for somebody to read it. So a separate process knows the workers' ids;
it learns of the training's end from a pipe that closes with it, and kills workers that are still there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

GRACE = 12.0  # seconds for the workers to exit by themselves

_pipes: weakref.WeakSet[Reaper] = weakref.WeakSet()


class Reaper:
    def __init__(self) -> None:
        self._pipe: int | None = None
        self._owner = os.getpid()

    def watch(self, iterator: Any) -> None:
        """Remember the workers of a loader's iterator. Costs one write an epoch; the process starts with the first."""
        workers = [worker.pid for worker in getattr(iterator, "_workers", ())]
        if not workers or os.getpid() != self._owner:
            return
        if self._pipe is None:
            self._start()
        self._say("".join(f"{pid}\n" for pid in workers))

    def close(self) -> None:
        """Stop watching: the training continues without hotlap, so its workers must live."""
        if self._pipe is None:
            return
        if os.getpid() == self._owner:
            self._say("forget\n")
        self.let_go()

    def let_go(self) -> None:
        if self._pipe is not None:
            with suppress(OSError):
                os.close(self._pipe)
            self._pipe = None

    def _start(self) -> None:
        read, self._pipe = os.pipe()
        _let_go_in_children(self)
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("watch.py")), str(GRACE)]
        try:
            # It detaches itself: the program may wait for its own children.
            subprocess.run(
                command, stdin=read, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
        finally:
            os.close(read)

    def _say(self, text: str) -> None:
        if self._pipe is not None:
            with suppress(OSError):  # somebody else has killed the process
                os.write(self._pipe, text.encode())


def _let_go_in_children(reaper: Reaper) -> None:
    """Close the pipe in forked workers, which would otherwise keep it open beyond the training's end."""
    if not _pipes:
        os.register_at_fork(after_in_child=_let_go)
    _pipes.add(reaper)


def _let_go() -> None:
    for reaper in list(_pipes):
        reaper.let_go()
