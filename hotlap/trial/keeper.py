"""Protects files that trials must not change, even if compiled code or another program bypasses the diversion.

Before the first process, all files in the folders at stake are noted, and copied if they are small enough. After each
process, changed files are examined. What happens depends on who changed them:

- The trial, so the file is restored: one of its processes had the file open for writing; or it is not a source file,
  and the program wrote files (which were diverted) into the same folder in that process, or two processes changed it
  in the same way, or it is gone.
- Another process, or unknown, so the file is left and reported: a process outside the trial has it open for writing, or
  it changed while no trial ran, or anything else.

The version found in its place is put aside, so nothing is lost either way. A file that the trial changed and that was
too large to copy ends the tune. Files that a trial created are put aside as well, by the same rule.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hotlap.errors import BaselineUnusable
from hotlap.trial.order import PLACES

MOST_FILES = 20_000  # noted in all
MOST_READ = 2_000  # files in a folder that was only read from: a larger one is a data set
LARGEST, ALL_COPIES = 64 << 20, 512 << 20  # bytes: of one file to copy, and of all copies
SKIPPED = frozenset((".git", ".hg", "__pycache__", "node_modules", ".hotlap", ".ipynb_checkpoints", ".pytest_cache"))
SOURCES = frozenset(
    ".py .pyx .pyi .ipynb .sh .md .rst .tex .toml .cfg .ini .yaml .yml .c .cc .cpp .cu .h .hpp .rs .go .js .ts".split()
)
SYSTEM = ("/proc", "/sys", "/dev", "/run", "/usr", "/etc", "/lib", "/bin", "/opt")
ASIDE = "put-aside"
MOST_REPORTED = 20  # messages about files changed by an unknown process
WRITES = os.O_WRONLY | os.O_RDWR


class FileStamp(NamedTuple):
    inode: int
    size: int
    mtime: int
    ctime: int
    mode: int


class Keeper:
    def __init__(
        self, folder: Path, roots: Iterable[Path], say: Callable[[str], None], ours: Iterable[Path] = ()
    ) -> None:
        """Keep copies below `folder`; call `say` with one line about each file; skip the folders in `ours`."""
        self._folder, self._say = folder, say
        self._ours = {os.path.realpath(path) for path in (folder, *ours)}
        self._roots: list[str] = []
        self._noted: dict[str, FileStamp] = {}
        self._copies: dict[str, Path] = {}
        self._room = ALL_COPIES
        self._others: set[str] = set()  # changed while no trial ran
        self._open: set[str] = set()  # for writing, by the running process
        self._once: dict[str, str] = {}  # changed in one process so far: digest of its new content
        self._first: dict[str, FileStamp] = {}  # their stamps before that change
        self._new: set[str] = set()  # files of unknown origin
        self._reported: set[tuple[str, bool]] = set()
        self.lines: list[str] = []
        self.add(roots)

    # Before

    def add(self, folders: Iterable[Path], read_only: bool = False) -> None:
        for folder in folders:
            root = os.path.realpath(folder)
            if not self._watches(root) and not self._is_ours(root) and root != "/" and Path(root).is_dir():
                found = list(self._walk(root, MOST_READ + 1 if read_only else MOST_FILES))
                if read_only and len(found) > MOST_READ:
                    continue
                self._roots.append(root)
                for path, stamp in found:
                    self._note(path, stamp)

    def _watches(self, path: str) -> bool:
        return any(path == root or path.startswith(root + "/") for root in self._roots)

    def _is_ours(self, path: str) -> bool:
        return any(path == folder or path.startswith(folder + "/") for folder in self._ours)

    def _walk(self, root: str, most: int) -> Iterator[tuple[str, FileStamp]]:
        """Yield files near the top first, so that a limit leaves out the deepest ones."""
        left, folders, home = most, deque([root]), os.path.expanduser("~")
        while folders and left > 0:
            with suppress(OSError), os.scandir(folders.popleft()) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    if entry.is_dir(follow_symlinks=False):
                        venv = os.path.exists(f"{entry.path}/pyvenv.cfg")
                        tools = root == home and entry.name.startswith(".")
                        if not (entry.name in SKIPPED or entry.path in self._ours or venv or tools):
                            folders.append(entry.path)
                    elif left > 0 and entry.is_file():
                        left -= 1
                        with suppress(OSError):  # for a link, its target: that is what a write changes
                            path = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
                            yield path, _stamp(path)

    def _note(self, path: str, stamp: FileStamp) -> None:
        if path in self._noted or len(self._noted) >= MOST_FILES:
            return
        self._noted[path] = stamp
        if stamp.size > min(LARGEST, self._room):
            return
        copy = self._folder / "copies" / str(len(self._copies))
        with suppress(OSError):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            self._copies[path] = copy
            self._room -= stamp.size

    def process_begins(self) -> None:
        """Accept what changed since the last process ended, because no trial did it."""
        self._open.clear()
        for path, now in self._changed():
            self._others.add(path)
            self._accept(path, now)

    def look_at(self, pids: Iterable[int]) -> None:
        """Remember the files that these processes have open for writing."""
        self._open |= {
            path for pid in pids for path in open_for_writing(pid) if path in self._noted or self._watches(path)
        }

    # After

    def process_ended(self, folder: Path, scratch: Path) -> None:
        """Restore what the finished process changed; `folder` and `scratch` are its folders."""
        written = {os.path.dirname(path) for path in _files_below(scratch)}
        lost = []
        for path, now in list(self._changed()):
            if _open_elsewhere(path):
                self._others.add(path)
            if not self._is_the_trials(path, now, written):
                self._leave(path, now)
            elif path in self._noted and path not in self._copies and path not in self._new:
                lost.append(path)
            else:
                self._put_back(path, now)
        if lost:
            raise BaselineUnusable(
                f"the command overwrote {', '.join(lost)}, bypassing hotlap (compiled code or another program); it was "
                "too large to copy beforehand, so it cannot be restored; tune a command that does not write there, or "
                "work in a copy of the folder"
            )
        self.add(Path(place) for place in sorted(written) if _at_stake(place))
        self.add((Path(place) for place in _places(folder) if _at_stake(place)), read_only=True)

    def _changed(self) -> Iterator[tuple[str, FileStamp | None]]:
        seen: set[str] = set()
        for root in self._roots:
            for path, now in self._walk(root, MOST_FILES):
                seen.add(path)
                before = self._noted.get(path)
                if before is None:
                    if len(self._noted) < MOST_FILES:
                        yield path, now
                elif before != now and (before.mode != now.mode or self._differs(path, before, now)):
                    yield path, now
        for path in [path for path in self._noted if path not in seen and not os.path.lexists(path)]:
            yield path, None

    def _differs(self, path: str, before: FileStamp, now: FileStamp) -> bool:
        """Compare by content if there is a copy: a file that was only touched has not changed."""
        if before.size != now.size or path not in self._copies:
            return before[:3] != now[:3]
        same = _digest(path) == _digest(str(self._copies[path]))
        if same:
            self._noted[path] = now
        return not same

    def _is_the_trials(self, path: str, now: FileStamp | None, written: set[str]) -> bool:
        if path in self._others:
            return False
        if path in self._open:
            return True
        if os.path.splitext(path)[1].lower() in SOURCES:
            return False
        if now is None or os.path.dirname(path) in written:
            return True
        digest = _digest(path)
        twice = self._once.get(path) == digest
        self._once[path] = digest
        return twice

    def _leave(self, path: str, now: FileStamp | None) -> None:
        """Leave the file for now and keep its copy: if the next process changes it the same way, it is the trial's."""
        what = "was deleted" if now is None else "is new" if path not in self._noted else "was changed"
        if path not in self._others:
            self._report(
                path, f"{path} {what} while a trial ran, and it is not known by what; hotlap does not touch it"
            )
        if now is None or path not in self._once:
            self._accept(path, now)
        elif path not in self._noted:
            self._new.add(path)
            self._noted[path] = now
        else:
            self._first.setdefault(path, self._noted[path])
            self._noted[path] = now

    def _accept(self, path: str, now: FileStamp | None) -> None:
        """Take the current state of the file as the one to protect."""
        self._noted.pop(path, None)
        self._new.discard(path)
        if (copy := self._copies.pop(path, None)) is not None:
            with suppress(OSError):
                self._room += copy.stat().st_size
                copy.unlink()
        if now is not None:
            self._noted[path] = now

    def _put_back(self, path: str, now: FileStamp | None) -> None:
        if now is not None:
            self._put_aside(path)
        copy = self._copies.get(path)
        if copy is None:
            Path(path).unlink(missing_ok=True)
            self._noted.pop(path, None)
            self._report(
                path,
                f"{path} was created in a trial by code that bypasses hotlap; it was moved to {self._aside}",
                True,
            )
            return
        before = self._first.get(path, self._noted[path])
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        if now is not None and now.inode == before.inode:
            shutil.copyfile(copy, path)
        else:
            draft = f"{path}.hotlap"
            shutil.copyfile(copy, draft)
            os.replace(draft, path)
        os.chmod(path, stat.S_IMODE(before.mode))
        os.utime(path, ns=(before.mtime, before.mtime))
        self._noted[path] = _stamp(path)
        what = "deleted" if now is None else "overwritten"
        self._report(
            path,
            f"{path} was {what} in a trial by code that bypasses hotlap (compiled code or another program); it was "
            "restored",
            True,
        )

    @property
    def _aside(self) -> Path:
        return self._folder / ASIDE

    def _put_aside(self, path: str) -> None:
        with suppress(OSError):
            self._aside.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, self._aside / f"{len(os.listdir(self._aside))}-{os.path.basename(path)}")

    def _report(self, path: str, line: str, known: bool = False) -> None:
        """Report a file once, and once more when it has become known who changed it."""
        if (path, known) not in self._reported and (known or len(self._reported) < MOST_REPORTED):
            self._reported.add((path, known))
            self.lines = [*(earlier for earlier in self.lines if not (known and earlier.startswith(f"{path} "))), line]
            self._say(line)

    def close(self) -> None:
        shutil.rmtree(self._folder / "copies", ignore_errors=True)
        with suppress(OSError):  # not empty if files were put aside
            self._folder.rmdir()


def folders_at_stake(command: Iterable[str]) -> list[Path]:
    """Return the folders where a command runs, where its script lies, and those its arguments name."""
    found = [Path.cwd()]
    for word in command:
        path = Path(word.partition("=")[2] or word)
        with suppress(OSError, ValueError):
            if path.exists() and _at_stake(os.path.realpath(path)):
                found.append(path if path.is_dir() else path.resolve().parent)
    return found


def _at_stake(path: str) -> bool:
    """Whether to protect a folder: not the system's, the interpreter's, or a whole home folder."""
    outside = (*SYSTEM, sys.prefix, sys.base_prefix)
    return (
        path not in ("/", os.path.expanduser("~"), "/tmp", "/home", "/root")
        and not any(path == folder or path.startswith(folder + "/") for folder in outside)
        and "/site-packages/" not in path + "/"
    )


def _stamp(path: str) -> FileStamp:
    status = os.lstat(path)
    return FileStamp(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)


def _files_below(scratch: Path) -> Iterator[str]:
    """Yield the diverted files by the paths that the program used."""
    for folder, _, names in os.walk(scratch):
        for name in names:
            yield f"{folder[len(str(scratch)) :]}/{name}"


def _places(folder: Path) -> list[str]:
    with suppress(OSError):
        return list(dict.fromkeys((folder / PLACES).read_text(encoding="utf-8", errors="replace").split("\n")[:-1]))
    return []


def open_for_writing(pid: int) -> Iterator[str]:
    """Yield the files that a process has open for writing. Linux only."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError, ValueError):
                path = os.readlink(f"/proc/{pid}/fd/{name}")
                if path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/memfd:")):
                    with open(f"/proc/{pid}/fdinfo/{name}", encoding="ascii") as info:
                        flags = next(line for line in info if line.startswith("flags:"))
                    if int(flags.split()[1], 8) & WRITES:
                        yield path


def _open_elsewhere(path: str) -> bool:
    """Whether any process still has the file open for writing; those of the trial are over."""
    with suppress(OSError):
        return any(path in open_for_writing(int(pid)) for pid in os.listdir("/proc") if pid.isdigit())
    return False


def _digest(path: str) -> str:
    found = hashlib.blake2b(digest_size=16)
    with suppress(OSError), open(path, "rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()
