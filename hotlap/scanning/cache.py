"""A cache of scan results by content: a source tree that has not changed is not scanned again.

What is found in a file depends on all the others: on who calls its functions, on every class with a method of the same
name, on settings made anywhere in the program. So the key covers the content of every file, the rules and the filter;
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

_MAX_RESULTS = 16  # results in the cache
_MAX_BYTES = 20_000_000  # bytes in the whole cache
_SCANNER = (
    "analysis/**/*.py", "scanning/*.py", "records/scan_finding.py",
    "catalog/patterns.py", "catalog/*/find.py", "catalog/*/card.md",
)  # fmt: skip


def key(sources: Iterable[Source], context: Iterable[Source], finding_filter: FindingFilter) -> str:
    digest = hashlib.blake2b(_rules().encode(), digest_size=16)
    digest.update(repr(finding_filter).encode())
    for group in (sources, context):
        for source in group:
            digest.update(f"\0{source.path}\0{source.module}\0{source.package}\0".encode(errors="surrogateescape"))
            try:
                digest.update(hashlib.blake2b(Path(source.path).read_bytes()).digest())
            except OSError as error:
                digest.update(f"\0{error.strerror}".encode())
        digest.update(b"\1")
    return digest.hexdigest()


@cache
def _rules() -> str:
    """Hash the scanner itself: a changed rule, or another version of Python, may find something else."""
    digest = hashlib.blake2b(sys.version.encode(), digest_size=16)
    home = Path(__file__).parents[1]
    for pattern in _SCANNER:
        for path in sorted(home.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def load(folder: Path, name: str) -> Scan | None:
    """Return the cached result, or None if there is none or it cannot be read."""
    path = folder / f"{name}.json"
    try:
        found = from_json(Scan, private.read(path, _MAX_BYTES).decode(), str(path))
    except (private.Unfit, UnicodeDecodeError, RecordUnreadable):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the least recently used results are deleted first
    return found


def save(folder: Path, name: str, result: Scan) -> None:
    """Store a result if possible; a scan never fails because of its cache. Two processes may do this at once."""
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
    """Delete all but the most recently used results, within the limits on number and size."""
    cached = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError):  # another process deleted it
            status = path.stat()
            cached.append((status.st_mtime_ns, status.st_size, path))
    room = _MAX_BYTES
    for number, (_, size, path) in enumerate(sorted(cached, reverse=True)):
        room -= size
        if number and (number >= _MAX_RESULTS or room < 0):
            path.unlink(missing_ok=True)
