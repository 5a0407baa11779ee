"""Generated data on disk: made once, checked when opened, never half-written.

A folder of data is complete when it holds `manifest.json`, written last, with the SHA-256 of every file.
An interrupted build leaves only a hidden sibling folder, which the next build removes.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypedDict

MANIFEST = "manifest.json"
GIB = 1024**3


class NotEnoughDisk(OSError):
    """The disk cannot hold the data about to be generated."""


class FileRecord(TypedDict):
    """What the manifest says of one file."""

    sha256: str
    size: int
    mtime_ns: int


def data_root() -> Path:
    """The folder that holds all generated data: HOTLAP_DATA, else a cache folder in the home."""
    chosen = os.environ.get("HOTLAP_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "hotlap" / "data"


def folder(workload: str, size: str, seed: int, version: int, root: Path | None = None) -> Path:
    """Where the data of one workload, size, seed and generator version belongs."""
    return (root or data_root()) / workload / f"{size}-seed{seed}-v{version}"


def make_once(folder: Path, build: Callable[[Path], None], bytes_needed: int) -> Path:
    """Return `folder` holding complete data, calling `build(temporary_folder)` if it does not yet.

    Safe against other processes doing the same, against a crash during the build and against files that
    were torn or changed afterwards (they are rebuilt).
    """
    if is_complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder):
        if not is_complete(folder):
            _remove_leftovers(folder)
            _require_disk(folder, bytes_needed)
            _build_and_move(folder, build)
    return folder


def is_complete(folder: Path) -> bool:
    """Whether every file named by the manifest is there and unchanged."""
    files = _read_manifest(folder)
    return files is not None and all(_is_intact(folder / name, record) for name, record in files.items())


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every data file by its path inside `folder`, the manifest left out."""
    return {name: _sha256(folder / name) for name in _file_names(folder)}


def command_line(ensure: Callable[..., Path], sizes: tuple[str, ...], arguments: list[str] | None = None) -> int:
    """`python data.py --size small [--seed 0] [--root DIR]`: make the data and print its folder."""
    parser = argparse.ArgumentParser(description="Generate the data of this workload once and print its folder.")
    parser.add_argument("--size", choices=sizes, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", type=Path, default=None, help="default: HOTLAP_DATA or ~/.cache/hotlap/data")
    chosen = parser.parse_args(arguments)
    try:
        print(ensure(chosen.size, seed=chosen.seed, root=chosen.root))
    except NotEnoughDisk as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _read_manifest(folder: Path) -> dict[str, FileRecord] | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        files = manifest["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing or torn: the same as no data
    return files if isinstance(files, dict) and files else None


def _is_intact(path: Path, record: FileRecord) -> bool:
    try:
        status = path.stat()
        if status.st_size != record["size"]:
            return False
        # Reading gigabytes at every start costs seconds; an unchanged modification time stands in for that.
        return status.st_mtime_ns == record["mtime_ns"] or _sha256(path) == record["sha256"]
    except (OSError, KeyError, TypeError):
        return False


def _build_and_move(folder: Path, build: Callable[[Path], None]) -> None:
    temporary = folder.parent / f".{folder.name}.building-{os.getpid()}"
    temporary.mkdir()
    try:
        build(temporary)
        _write_manifest(temporary)
        _move_into_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_manifest(folder: Path) -> None:
    files = {name: _record(folder / name) for name in _file_names(folder)}
    if not files:
        raise ValueError(f"the generator wrote no file into {folder}; it must write at least one")
    path = folder / MANIFEST
    path.write_text(json.dumps({"files": files}, indent=1))
    _fsync(path)
    for directory in (folder, *(p for p in folder.rglob("*") if p.is_dir())):
        _fsync(directory)


def _record(path: Path) -> FileRecord:
    _fsync(path)
    status = path.stat()
    return {"sha256": _sha256(path), "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _move_into_place(temporary: Path, folder: Path) -> None:
    if folder.exists():  # damaged: os.replace refuses a folder that is not empty
        discarded = folder.parent / f".{folder.name}.discarded-{os.getpid()}"
        os.replace(folder, discarded)
        shutil.rmtree(discarded, ignore_errors=True)
    os.replace(temporary, folder)
    _fsync(folder.parent)


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed builds left; only called under the lock, so no other build is running."""
    for kind in ("building", "discarded"):
        for leftover in folder.parent.glob(f".{folder.name}.{kind}-*"):
            shutil.rmtree(leftover, ignore_errors=True)


def _require_disk(folder: Path, bytes_needed: int) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < bytes_needed:
        raise NotEnoughDisk(
            f"{folder.parent.name} data needs {bytes_needed / GIB:.2f} GiB but {folder.parent} has "
            f"{free / GIB:.2f} GiB free; free some space or set HOTLAP_DATA to a folder on a larger disk"
        )


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock file beside `folder`; the kernel drops it when its holder dies."""
    with open(folder.parent / f".{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _file_names(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(name for path in paths if (name := path.relative_to(folder).as_posix()) != MANIFEST)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
