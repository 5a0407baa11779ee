"""Prints hotlap's lines inside a process: only to the stderr that hotlap was started with.

A program may read the output of a process that it starts, which must contain nothing of ours. A line that nobody reads
is dropped: writing it neither waits nor ends the program, whatever that does on SIGPIPE.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from typing import Any

from hotlap.records import private
from hotlap.records.visible import visible

STDERR = 2
_ours: tuple[int, ...] = ()  # the device and inode of the command's stderr when hotlap was started


def ears() -> tuple[int, ...]:
    """Return the device and inode of this process's stderr, or nothing if it is closed."""
    try:
        found = os.fstat(STDERR)
    except OSError:
        return ()
    return found.st_dev, found.st_ino


def speak_to(ours: tuple[int, ...]) -> None:
    global _ours
    _ours = ours


def _to_a_new_line() -> str:
    """Return what to write first so that our line does not continue one of the program's, as far as that is known."""
    if _is_bar_drawn():
        return "\n"
    return to_a_new_line() if _ours else ""


def to_a_new_line() -> str:
    """Return what moves a terminal, or a file that stderr is, to a new line if a program left the last one begun."""
    try:
        if os.isatty(STDERR):  # as shells do it: a line of blanks wraps, unless the cursor is at the start of its line
            return " " * (os.get_terminal_size(STDERR).columns - 1) + "\r"
        return "\n" * _is_line_begun()
    except OSError:
        return ""


def _is_bar_drawn() -> bool:
    """Return whether a tqdm progress bar occupies the current line."""
    bars = getattr(getattr(sys.modules.get("tqdm.std"), "tqdm", None), "_instances", ())
    return any(not getattr(bar, "disable", True) and _is_drawn_here(bar) for bar in list(bars))


def _is_drawn_here(bar: Any) -> bool:
    """Return False only if the bar is known to be drawn elsewhere: to a file, or to a stdout that is not our stream."""
    try:
        drawn = os.fstat(bar.fp.fileno())
    except Exception:  # noqa: BLE001 a stream of the program's own may raise anything
        return True
    return not _ours or (drawn.st_dev, drawn.st_ino) == _ours


def _is_line_begun() -> bool:
    """Return whether stderr is a file that ends in the middle of a line."""
    status = os.fstat(STDERR)
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return False
    descriptor = os.open(f"/dev/fd/{STDERR}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, 1, status.st_size - 1) != b"\n"
    finally:
        os.close(descriptor)


def say(*lines: str) -> None:
    """Write to the stream itself, not to the program's own sys.stderr, which is used only in a notebook."""
    if _ours and ears() != _ours:
        return
    text = _to_a_new_line() + "".join(f"hotlap: {visible(line)}\n" for line in lines)
    try:
        if _ours:
            _write(text.encode("utf-8", "backslashreplace"))
        else:
            sys.stderr.write(text)
    except (OSError, ValueError, AttributeError):
        return  # stderr closed or replaced by something that cannot write


def _write(text: bytes) -> None:
    """Write as long as somebody reads; what fits into a pipe that can be written to is taken without waiting."""
    left = memoryview(text)
    with private.unsignalled():
        while left and _is_read():
            left = left[os.write(STDERR, left[: select.PIPE_BUF]) :]


def _is_read() -> bool:
    stream = select.poll()
    stream.register(STDERR, select.POLLOUT)
    return [event for _, event in stream.poll(0)] == [select.POLLOUT]
