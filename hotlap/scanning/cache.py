"""Results by content: a tree that did not change is not scanned again.

What is found in a file depends on all the others: on who calls its functions, on every class with a method of the same
name, on settings made anywhere in the program. So the key is the content of all of them, the rules, and what was asked;
a single changed file means a new scan.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from hotlap.analysis.parse.files import Source
from hotlap.errors import RecordUnreadable
from hotlap.records import private
from hotlap.records.codec import from_json, to_json
from hotlap.records.scan_finding import Scan
from hotlap.scanning.file_scan import FindingFilter

_MOST = 16  # results kept
_LARGEST = 20_000_000  # bytes kept in all
_SCANNER = (
    "analysis/**/*.py", "scanning/*.py", "records/scan_finding.py",
    "catalog/patterns.py", "catalog/*/find.py", "catalog/*/card.md",
)  # fmt: skip


def key(sources: Iterable[Source], context: Iterable[Source], wanted: FindingFilter) -> str:
    digest = hashlib.blake2b(_rules().encode(), digest_size=16)
    digest.update(repr(wanted).encode())
    for part in (sources, context):
        for source in part:
            digest.update(f"\0{source.path}\0{source.module}\0{source.package}\0".encode(errors="surrogateescape"))
            try:
                digest.update(hashlib.blake2b(Path(source.path).read_bytes()).digest())
            except OSError as error:
                digest.update(f"\0{error.strerror}".encode())
        digest.update(b"\1")
    return digest.hexdigest()


@cache
def _rules() -> str:
    """The scanner itself is part of the key: a changed rule finds other things, and so may another Python."""
    digest = hashlib.blake2b(sys.version.encode(), digest_size=16)
    home = Path(__file__).parents[1]
    for pattern in _SCANNER:
        for path in sorted(home.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def load(folder: Path, name: str) -> Scan | None:
    """What is kept under this name; None where it is not, or cannot be read: then it is made again."""
    path = folder / f"{name}.json"
    try:
        found = from_json(Scan, private.read(path, _LARGEST).decode(), str(path))
    except (private.Unfit, UnicodeDecodeError, RecordUnreadable):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the oldest are thrown away
    return found


def save(folder: Path, name: str, result: Scan) -> None:
    """Kept where that is possible; a scan never fails for its cache. Two processes may do so at once."""
    temporary = ""
    try:
        private.make_folder(folder)
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(to_json(result))
        Path(temporary).replace(folder / f"{name}.json")
        _trim(folder)
    except OSError:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def _trim(folder: Path) -> None:
    """The newest results only, few and small enough."""
    kept = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError):  # another process threw it away
            status = path.stat()
            kept.append((status.st_mtime_ns, status.st_size, path))
    room = _LARGEST
    for number, (_, size, path) in enumerate(sorted(kept, reverse=True)):
        room -= size
        if number and (number >= _MOST or room < 0):
            path.unlink(missing_ok=True)
