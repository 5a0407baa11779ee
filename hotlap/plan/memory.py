"""Remembers what runs of a command have decided, so that the next begins with it; never more than the risk allows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hotlap.errors import HotlapError
from hotlap.plan import saved_plan
from hotlap.records.codec import from_json
from hotlap.records.decisions import RememberedDecisions
from hotlap.records.plan import Choice
from hotlap.version import __version__


def place(home: Path, command: Sequence[str], choices: Sequence[Choice]) -> Path:
    """Return the file for these choices, beside the proven plan of the command."""
    plan = saved_plan.place(home.resolve(), command)
    names = "\0".join(f"{choice.name}={choice.value} {choice.asked}" for choice in choices)
    return plan.with_name(f"{plan.stem}-{hashlib.sha256(names.encode()).hexdigest()[:8]}.json")


def recall(file: Path, source: str) -> RememberedDecisions | None:
    """Return the decisions in a file, or None if it is missing, unreadable, or from other source code or hotlap."""
    with suppress(OSError, HotlapError, UnicodeDecodeError):
        if file.is_file() and not file.is_symlink():
            found = from_json(RememberedDecisions, file.read_text(encoding="utf-8"), str(file))
            return found if (found.source, found.hotlap) == (source, __version__) else None
    return None
