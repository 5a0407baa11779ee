"""Finds the files to scan, and reads them. A file that cannot be read is reported; it never stops a scan."""

from __future__ import annotations

import ast
import io
import os
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from hotlap.analysis.parse import notebooks
from hotlap.errors import ScanRefused
from hotlap.records.scan_finding import Unread

_MOST_AROUND = 2000  # files
LARGEST = 2_000_000  # bytes; larger files are generated
_SKIPPED = frozenset(
    "build dist node_modules __pycache__ venv env virtualenv site-packages __pypackages__ _build wheels".split()
)


@dataclass(frozen=True)
class Source:
    """A file to scan: its path as shown, and the dotted name it is imported by."""

    path: str
    module: str
    package: bool
    text: str | None = None  # the text to scan instead of the file's, if that is not yet written


@dataclass(frozen=True)
class ParsedFile:
    source: Source
    text: str
    tree: ast.Module


def discover(paths: Iterable[str], exclude: Iterable[str] = ()) -> tuple[list[Source], list[Unread]]:
    """Return the Python files under the paths, each once and in order, and the files that cannot be scanned."""
    sources: dict[str, Source] = {}
    unread: list[Unread] = []
    patterns = tuple(exclude)
    for path in paths:
        if not os.path.lexists(path):
            raise ScanRefused(f"{path} does not exist; give files or folders: hotlap scan src/")
        for found in _walk(path, patterns) if Path(path).is_dir() else [path]:
            if isinstance(found, Unread):
                unread.append(found)
            else:
                sources.setdefault(os.path.normpath(Path(found).absolute()), _source(found, path))
    return list(sources.values()), unread


def surroundings(paths: Iterable[str], sources: Iterable[Source], exclude: Iterable[str] = ()) -> list[Source]:
    """Return the project's other files, which show how hot these are, or none if there are very many.

    A file outside of any project is judged together with what it can import from its folder.
    """
    given = [Path(os.path.normpath(Path(path).absolute())) for path in paths]
    root = _root(given[0]) if given else None
    if not given or root in given or (root is None and given[0].is_dir()):
        return []
    known = {os.path.normpath(Path(source.path).absolute()) for source in sources}
    found: list[Source] = []
    around = _walk(str(root), tuple(exclude)) if root else _beside(given[0].parent)
    root = root or given[0].parent
    for path in around:
        if isinstance(path, str) and path.endswith(".py") and os.path.normpath(Path(path).absolute()) not in known:
            found.append(_source(path, str(root)))
            if len(found) > _MOST_AROUND:
                return []
    return found


def _beside(folder: Path) -> Iterator[str]:
    """Yield the modules and packages in a folder."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.suffix == ".py" and entry.is_file():
            yield str(entry)
        elif (entry / "__init__.py").is_file() and not entry.is_symlink():
            yield from _beside(entry)


def _root(start: Path) -> Path | None:
    here = start.absolute()
    for folder in (here, *here.parents)[:8]:
        if any((folder / name).exists() for name in ("pyproject.toml", "setup.py", "setup.cfg", ".git")):
            return folder
    return None


def _walk(top: str, exclude: tuple[str, ...]) -> Iterator[str | Unread]:
    errors: list[OSError] = []
    for folder, folders, files in os.walk(top, onerror=errors.append):
        folders.sort()
        for name in [entry for entry in folders if (Path(folder) / entry).is_symlink()]:
            folders.remove(name)
            if _loops(Path(folder) / name):
                yield Unread(str(Path(folder) / name), "a link to a folder that contains it; not followed", whole=False)
        folders[:] = [
            entry for entry in folders if not _is_skipped(folder, entry) and not _excluded(folder, entry, exclude)
        ]
        for name in sorted(files):
            if name.endswith((".py", ".ipynb")) and not name.startswith(".") and not _excluded(folder, name, exclude):
                yield str(Path(folder) / name)
    for error in errors:
        yield Unread(str(error.filename), f"cannot be listed: {error.strerror}", whole=False)


def _loops(link: Path) -> bool:
    try:
        target = link.resolve()
    except (OSError, RuntimeError):
        return True
    return target in link.absolute().parents or target.is_symlink()


def _is_skipped(folder: str, name: str) -> bool:
    return (
        name.startswith(".")
        or name in _SKIPPED
        or name.endswith(".egg-info")
        or ((Path(folder) / name / "pyvenv.cfg").exists())
    )


def _excluded(folder: str, name: str, patterns: tuple[str, ...]) -> bool:
    path = f"{folder}/{name}"
    return any(
        fnmatch(name, pattern) or fnmatch(path, pattern) or fnmatch(path, f"*/{pattern.rstrip('/')}")
        for pattern in patterns
    )


def _source(path: str, top: str) -> Source:
    base = Path(top).absolute()
    base = base if base.is_dir() else base.parent
    while (base / "__init__.py").exists() and base.parent != base:
        base = base.parent
    absolute = Path(path).absolute()
    parts = list(absolute.relative_to(base).with_suffix("").parts)
    package = parts[-1] == "__init__"
    if package:
        parts.pop()
    return Source(path, ".".join(parts) or base.name, package)


def read(source: Source) -> ParsedFile | Unread:
    """Return the parsed file, or why it cannot be parsed."""
    text = load(source)
    return text if isinstance(text, Unread) else parse(source, text)


def load(source: Source) -> str | Unread:
    """Return the text of the file, or why there is none."""
    if source.text is not None:
        return source.text
    try:
        size = Path(source.path).stat().st_size
        largest = notebooks.LARGEST if source.path.endswith(notebooks.SUFFIX) else LARGEST
        if size > largest:
            most = f"{largest / 1e6:.0f} MB"
            return Unread(source.path, f"{size / 1e6:.1f} MB; files above {most} are assumed to be generated")
        data = Path(source.path).read_bytes()
    except OSError as error:
        return Unread(source.path, f"cannot be read: {error.strerror}")
    if source.path.endswith(notebooks.SUFFIX):
        cells = notebooks.program(data)
        return Unread(source.path, "is not a notebook of Jupyter 4 or newer") if cells is None else cells
    text = decoded(data)
    if text is None:
        return Unread(source.path, "is binary or not in the encoding it declares (UTF-8 when it declares none)")
    return text


def decoded(data: bytes) -> str | None:
    """Decode the text by PEP 263, preserving line ends; return None if it is not text in its encoding."""
    if b"\0" in data:
        return None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return None


def parse(source: Source, text: str) -> ParsedFile | Unread:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = text.replace("\r\n", "\n").replace("\r", "\n")
            return ParsedFile(source, plain, ast.parse(plain))
    except SyntaxError as error:
        return Unread(source.path, _why(error))
    except (ValueError, RecursionError, MemoryError) as error:
        return Unread(source.path, f"cannot be parsed: {type(error).__name__}")


def _why(error: SyntaxError) -> str:
    message = error.msg or "invalid syntax"
    old = message.startswith(("Missing parentheses in call", "multiple exception types must be")) or (
        "leading zeros" in message or "inconsistent use of tabs" in message
    )
    return f"{'Python 2? ' if old else ''}{message} (line {error.lineno})"


def is_test(path: str) -> bool:
    """Match files of tests; nobody waits for what a test trains."""
    parts = Path(path).parts
    return any(part in ("tests", "test", "testing") or part.startswith(("test_", "conftest")) for part in parts)
