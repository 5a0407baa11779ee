"""Reads where another thread is, without touching its frames.

A frame object taken from another thread keeps the locals of its function alive after the function has returned. These
include tensors, and CUDA graphs captured by torch.compile then refuse to replay. faulthandler writes a thread's calls
as text from C, while holding the GIL and without creating an object for any frame.
"""

from __future__ import annotations

import faulthandler
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from hotlap.observe.frames import _INSTALLED, _USER, kind_of

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)\b", re.MULTILINE)
_CALL = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")  # how everything outside ASCII is written


MODULES = str(Path("torch", "nn", "modules", "module.py"))


class Call(NamedTuple):
    file: str
    line: int
    function: str


class Stacks:
    """Reads the calls of one thread, innermost first, and at most a hundred of them."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._text = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the sampler

    def calls(self) -> list[Call]:
        self._text.seek(0)
        self._text.truncate()
        faulthandler.dump_traceback(self._text, all_threads=True)
        self._text.seek(0)
        return calls_of(self._text.read().decode("ascii", "backslashreplace"), self._thread)

    def close(self) -> None:
        self._text.close()


def calls_of(text: str, thread: int) -> list[Call]:
    """Return the calls of a thread from faulthandler's text; none if the thread is not in it."""
    heads = list(_THREAD.finditer(text))
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        if int(head.group(1), 16) == thread:
            section = text[head.end() : following.start() if following else len(text)]
            return [Call(_plain(file), int(line), _plain(name)) for file, line, name in _CALL.findall(section)]
    return []


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(next(filter(None, found.groups())), 16)), text)


def in_a_module(calls: list[Call]) -> bool:
    """Return whether a torch.nn.Module is being called."""
    return any(call.function == "_call_impl" and call.file.endswith(MODULES) for call in calls)


def users_call(calls: list[Call]) -> Call | None:
    """Return the innermost call of user code, else that of an installed program."""
    for wanted in (_USER, _INSTALLED):
        found = next((call for call in calls if kind_of(call.file) == wanted), None)
        if found is not None:
            return found
    return None
