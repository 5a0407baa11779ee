"""What runs of a command have decided: the next one begins with it. It names no more than the risk allows."""

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
    """Beside the plan that a tune has proven; one for each set of what may be tried."""
    plan = saved_plan.place(home.resolve(), command)
    names = "\0".join(f"{choice.name}={choice.value} {choice.asked}" for choice in choices)
    return plan.with_name(f"{plan.stem}-{hashlib.sha256(names.encode()).hexdigest()[:8]}.json")


def recall(file: Path, source: str) -> RememberedDecisions | None:
    """None where there is nothing, or nothing that can be read, or it was decided for another source."""
    with suppress(OSError, HotlapError, UnicodeDecodeError):
        if file.is_file() and not file.is_symlink():
            found = from_json(RememberedDecisions, file.read_text(encoding="utf-8"), str(file))
            return found if (found.source, found.hotlap) == (source, __version__) else None
    return None
