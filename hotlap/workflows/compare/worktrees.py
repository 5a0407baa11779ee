"""Temporary checkouts of git revisions, each in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hotlap.errors import NotComparable


@dataclass(frozen=True, kw_only=True, slots=True)
class Worktree:
    revision: str  # as the user named it
    commit: str
    root: Path
    folder: Path  # below the root, as the current folder is below the user's root

    def variables(self, top: Path, before: Mapping[str, str]) -> dict[str, str]:
        """Return a PYTHONPATH that puts this revision's modules ahead of an editable install of the user's checkout."""
        given = [path for path in before.get("PYTHONPATH", "").split(os.pathsep) if path]
        moved = [str(_moved(Path(path), top, self.root)) for path in given]
        own = [str(path) for path in (self.root, self.root / "src") if path.is_dir()]
        return {"PYTHONPATH": os.pathsep.join([*moved, *own])}


def commit_of(revision: str) -> str:
    """Return the commit of a revision of the repository around the current folder."""
    try:
        return _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except NotComparable as error:
        raise NotComparable(f"{revision} is not a revision of this repository; see: git log --oneline") from error


def is_revision(word: str) -> bool:
    try:
        commit_of(word)
    except NotComparable:
        return False
    return True


def top() -> Path:
    try:
        return Path(_git("rev-parse", "--show-toplevel"))
    except NotComparable as error:
        raise NotComparable(f"{Path.cwd()} is not in a git repository; compare two commands instead") from error


@contextmanager
def checked_out(revisions: Sequence[str], at: Path, links: Sequence[Path] = ()) -> Iterator[tuple[Worktree, ...]]:
    """Check out each revision into a folder below `at`; the folders are removed at the end, even after an error."""
    root, here = top(), Path.cwd().resolve()
    below = here.relative_to(root.resolve())
    commits = [commit_of(revision) for revision in revisions]
    places = [at / f"{i}-{commit[:12]}" for i, commit in enumerate(commits)]
    try:
        checkouts = []
        for revision, commit, place in zip(revisions, commits, places, strict=True):
            _git("worktree", "add", "--detach", "--force", str(place), commit)
            _link(links, place / below, revision)
            checkouts.append(_worktree(revision, commit, place, below))
        yield tuple(checkouts)
    finally:
        for place in places:
            _remove(place, root)


def _worktree(revision: str, commit: str, place: Path, below: Path) -> Worktree:
    if not (place / below).is_dir():
        raise NotComparable(f"{revision} has no folder {below}; run hotlap in a folder that both revisions have")
    return Worktree(revision=revision, commit=commit, root=place, folder=place / below)


def _link(links: Sequence[Path], folder: Path, revision: str) -> None:
    """Link what git does not track, such as data, to where the program expects it; the revision's own files stay."""
    for path in links:
        if not path.exists():
            raise NotComparable(f"--link {path}: there is no such file or folder")
        if path.is_absolute() or ".." in path.parts:
            raise NotComparable(f"--link {path}: give a path below the current folder")
        place = folder / path
        if place.exists():
            continue
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path.resolve())
        except OSError as error:
            raise NotComparable(f"--link {path}: cannot be linked into {revision} ({error.strerror})") from error


def _remove(place: Path, root: Path) -> None:
    with suppress(NotComparable):
        _git("worktree", "remove", "--force", "--force", str(place), folder=root)
    shutil.rmtree(place, ignore_errors=True)
    with suppress(NotComparable):
        _git("worktree", "prune", folder=root)


def _moved(path: Path, top: Path, root: Path) -> Path:
    whole = path.resolve()
    return root / whole.relative_to(top.resolve()) if whole.is_relative_to(top.resolve()) else path


def _git(*words: str, folder: Path | None = None) -> str:
    """Return what git prints; raise an error with git's own message if it fails."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
    except OSError as error:
        raise NotComparable("git was not found; install it, or compare two commands") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise NotComparable(f"git {words[0]} failed: {last}")
    return done.stdout.strip()
