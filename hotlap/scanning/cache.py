"""Results by content: a tree that did not change is not scanned again.

What is found in a file depends on all the others, so the key is the content of all of them, the rules, and what was
asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from hotlap.errors import RecordUnreadable
from hotlap.model.codec import from_json, to_json
from hotlap.model.scanned import Scan
from hotlap.scanning.looking import Wanted
from hotlap.source.files import Source

_KEPT = 16


def key(sources: Iterable[Source], context: Iterable[Source], wanted: Wanted) -> str:
    digest = hashlib.blake2b(_rules().encode(), digest_size=16)
    digest.update(repr(wanted).encode())
    for part in (sources, context):
        for source in part:
            digest.update(f"\0{source.path}\0{source.module}\0".encode(errors="surrogateescape"))
            try:
                digest.update(hashlib.blake2b(Path(source.path).read_bytes()).digest())
            except OSError:
                digest.update(b"unreadable")
        digest.update(b"\1")
    return digest.hexdigest()


@cache
def _rules() -> str:
    """The scanner itself is part of the key: a changed rule finds other things."""
    digest = hashlib.blake2b(digest_size=16)
    home = Path(__file__).parents[1]
    for pattern in ("source/*.py", "scanning/*.py", "catalog/*/find.py", "catalog/*/card.md"):
        for path in sorted(home.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def load(folder: Path, name: str) -> Scan | None:
    path = folder / f"{name}.json"
    try:
        return from_json(Scan, path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError, RecordUnreadable):
        return None


def save(folder: Path, name: str, result: Scan) -> None:
    """Kept where that is possible; a scan never fails for its cache."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"{name}.tmp"
        draft.write_text(to_json(result), encoding="utf-8")
        draft.replace(folder / f"{name}.json")
        old = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-_KEPT]
        for path in old:
            path.unlink(missing_ok=True)
    except OSError:
        return
