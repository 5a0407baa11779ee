"""Repair files: scan and fix in rounds until nothing is left to fix, then write each file whole or not at all."""

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

from hotlap.analysis.edits import soundness
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
    """The text of a file before and after its repair."""

    path: str
    before: str
    after: str

    def diff(self) -> str:
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True), self.after.splitlines(keepends=True), self.path, self.path
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def repair(
    sources: Sequence[Source], finding_filter: FindingFilter, unsafe: bool, context: Sequence[Source] = ()
) -> tuple[list[FileRepair], Scan]:
    """Return the repaired files and the findings that are left; write nothing."""
    _need_libcst()
    before: dict[str, str] = {}
    current = {source.path: source for source in sources}
    for _ in range(_ROUNDS):
        result = scan(list(current.values()), finding_filter, context)
        changed = False
        unsound: list[ScanFinding] = []
        for path, findings in _by_file(result, unsafe).items():
            text = before.get(path) or _source_text(path)
            new, refused = _fixed_text(current[path].text or text, findings)
            unsound += refused
            if new is not None:
                before[path], changed = text, True
                current[path] = replace(current[path], text=new)
        if not changed:
            break
    repaired = [FileRepair(path, text, current[path].text or text) for path, text in sorted(before.items())]
    return [file for file in repaired if file.before != file.after], _without_repairs(result, unsound)


def _without_repairs(result: Scan, unsound: Sequence[ScanFinding]) -> Scan:
    """Return the scan with these findings as no longer repairable."""
    left = {id(finding) for finding in unsound}
    return replace(
        result,
        findings=tuple(
            replace(finding, applicability=Applicability.DISPLAY_ONLY) if id(finding) in left else finding
            for finding in result.findings
        ),
    )


def repair_text(text: str, finding_filter: FindingFilter, unsafe: bool) -> str:
    """Return the repaired text of one program in memory."""
    _need_libcst()
    for _ in range(_ROUNDS):
        findings = _by_file(scan_text(text, finding_filter), unsafe)
        new = _fixed_text(text, findings["train.py"])[0] if findings else None
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
    allowed = {Applicability.SAFE} | ({Applicability.UNSAFE} if unsafe else set())
    grouped: dict[str, list[ScanFinding]] = {}
    for finding in result.findings:
        if finding.applicability in allowed:
            grouped.setdefault(finding.path, []).append(finding)
    return grouped


def _fixed_text(text: str, findings: Sequence[ScanFinding]) -> tuple[str | None, list[ScanFinding]]:
    """Return the text with its findings repaired, or None if nothing changes, and the findings whose repair is unsound.

    A repair that would leave the file broken or untidy is not made, and does not keep the others from being made.
    """
    new = _changed(text, findings)
    if new is None or not soundness.flaws(text, new):
        return new, []
    sound: list[ScanFinding] = []
    for finding in findings:
        new = _changed(text, [*sound, finding])
        if new is None or not soundness.flaws(text, new):
            sound.append(finding)
    return (_changed(text, sound) if sound else None), [finding for finding in findings if finding not in sound]


def _changed(text: str, findings: Sequence[ScanFinding]) -> str | None:
    from libcst import ParserSyntaxError

    from hotlap.analysis.edits.imports import without_orphans
    from hotlap.analysis.edits.place import Tree

    try:
        tree = Tree(text)
    except (ParserSyntaxError, RecursionError):
        return None
    applied = False
    for finding in findings:
        fix = patterns.fix_of(finding.name)
        applied = (fix is not None and tree.apply(fix, finding)) or applied
    new = tree.code() if applied else text
    try:
        new = without_orphans(text, new)
    except (SyntaxError, RecursionError):
        return new  # refused by the check of all repairs
    return None if new == text else new


def _source_text(path: str) -> str:
    text = files.decoded(Path(path).read_bytes())
    assert text is not None
    return text


def write(repaired: FileRepair) -> None:
    """Write the file in its old encoding, by renaming: a reader sees either the old file or the new one."""
    path = Path(repaired.path).resolve()  # a link stays a link, and its target is changed
    try:
        data = path.read_bytes()
        if files.decoded(data) != repaired.before:
            raise ScanRefused(
                f"{repaired.path} was changed while it was being scanned; it was not repaired: scan it again"
            )
        if not os.access(path, os.W_OK):
            raise ScanRefused(f"{repaired.path} cannot be written: it is read-only; nothing in it was changed")
        _replace(path, _encoded(repaired.after, data))
    except OSError as error:
        raise ScanRefused(f"{repaired.path} cannot be written: {error.strerror}; nothing in it was changed") from error


def _encoded(text: str, before: bytes) -> bytes:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(before).readline)
    return text.encode(encoding)


def _replace(path: Path, data: bytes) -> None:
    """Replace the whole file at once, keeping its owner and permissions."""
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
