"""Remembers what runs of a command have decided, so that the next begins with it; never more than the risk allows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hotlap.errors import HotlapError
from hotlap.plan import saved_plan
from hotlap.plan.files import LARGEST
from hotlap.records import private
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
    """Return the decisions in a file, or None if it is missing, damaged, or from other source code or hotlap.

    Raise `private.Unfit` if somebody else could have written them.
    """
    if not os.path.lexists(file):
        return None
    private.refuse_what_others_can_change(file)
    with suppress(HotlapError, UnicodeDecodeError):
        found = from_json(RememberedDecisions, private.read(file, LARGEST).decode(), str(file))
        return found if (found.source, found.hotlap) == (source, __version__) else None
    return None
