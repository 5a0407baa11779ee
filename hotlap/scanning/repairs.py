"""Repairing: rounds of scanning and fixing until nothing is left to fix; then files written whole or not at all."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import tempfile
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hotlap.analysis.parse import files
from hotlap.analysis.parse.files import Source
from hotlap.catalog import patterns
from hotlap.errors import PackageMissing, ScanRefused
from hotlap.records.scan_finding import Applicability, Scan, ScanFinding
from hotlap.scanning.crew import scan
from hotlap.scanning.file_scan import FindingFilter, scan_text

_ROUNDS = 10


@dataclass(frozen=True)
class FileRepair:
    """A file before and after, and how many findings are gone."""

    path: str
    before: str
    after: str

    def diff(self) -> str:
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True), self.after.splitlines(keepends=True), self.path, self.path
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def repair(
    sources: Sequence[Source], wanted: FindingFilter, unsafe: bool, context: Sequence[Source] = ()
) -> tuple[list[FileRepair], Scan]:
    """What the files become, and the findings that are left."""
    _need_libcst()
    before: dict[str, str] = {}
    current = {source.path: source for source in sources}
    for _ in range(_ROUNDS):
        result = scan(list(current.values()), wanted, context)
        changed = False
        for path, found in _by_file(result, unsafe).items():
            text = before.get(path) or _text(path)
            new = _fixed(current[path].text or text, found)
            if new is not None:
                before[path], changed = text, True
                current[path] = replace(current[path], text=new)
        if not changed:
            break
    repaired = [FileRepair(path, text, current[path].text or text) for path, text in sorted(before.items())]
    return [file for file in repaired if file.before != file.after], result


def repair_text(text: str, wanted: FindingFilter, unsafe: bool) -> str:
    """The same for one program in memory."""
    _need_libcst()
    for _ in range(_ROUNDS):
        found = _by_file(scan_text(text, wanted), unsafe)
        new = _fixed(text, found["train.py"]) if found else None
        if new is None:
            break
        text = new
    return text


def _need_libcst() -> None:
    try:
        import libcst  # noqa: F401
    except ImportError as error:
        raise PackageMissing("--fix and --diff need libcst; type: pip install 'hotlap[fix]'") from error


def _by_file(result: Scan, unsafe: bool) -> dict[str, list[ScanFinding]]:
    allowed = {Applicability.SAFE.value} | ({Applicability.UNSAFE.value} if unsafe else set())
    grouped: dict[str, list[ScanFinding]] = {}
    for finding in result.findings:
        if finding.applicability in allowed:
            grouped.setdefault(finding.path, []).append(finding)
    return grouped


def _fixed(text: str, found: Sequence[ScanFinding]) -> str | None:
    """The text with the findings repaired; None where nothing could be, or what came out is no Python."""
    from libcst import ParserSyntaxError

    from hotlap.analysis.edits.place import Tree

    try:
        tree = Tree(text)
    except (ParserSyntaxError, RecursionError):
        return None
    made = False
    for finding in found:
        fix = patterns.fix_of(finding.name)
        made = (fix is not None and tree.apply(fix, finding)) or made
    new = tree.code() if made else text
    if new == text or not isinstance(files.parse(Source("", "", False), new), files.ParsedFile):
        return None
    return new


def _text(path: str) -> str:
    text = files.decoded(Path(path).read_bytes())
    assert text is not None
    return text


def write(repaired: FileRepair) -> None:
    """In the encoding it had, by renaming: a reader sees the old file or the new one."""
    path = Path(repaired.path).resolve()  # a link stays one, and what it names is changed
    try:
        data = path.read_bytes()
        if files.decoded(data) != repaired.before:
            raise ScanRefused(f"{repaired.path} was changed while it was being scanned; it is as it was: scan it again")
        if not os.access(path, os.W_OK):
            raise ScanRefused(f"{repaired.path} cannot be written: it is read-only; it is as it was")
        _replace(path, _encoded(repaired.after, data))
    except OSError as error:
        raise ScanRefused(f"{repaired.path} cannot be written: {error.strerror}; it is as it was") from error


def _encoded(text: str, before: bytes) -> bytes:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(before).readline)
    return text.encode(encoding)


def _replace(path: Path, data: bytes) -> None:
    """The whole file at once, with its owner and permissions."""
    old = path.stat()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(OSError):  # only root may give a file away
            os.chown(temporary, old.st_uid, old.st_gid)
        Path(temporary).chmod(old.st_mode & 0o7777)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
