"""Keeps what hotlap finds: one folder per project, outside the project, readable by its owner alone.

HOTLAP_DIR, or --run-dir, or the user's state folder: ~/.local/state/hotlap/<project>-<hash>/
    runs/<id>/       one JSON file per record, written as soon as it exists
    plans/           proven plans, by command
<state folder>/key   signs plans; it is always here, even if runs are kept elsewhere
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hotlap.errors import RecordUnreadable, RunFolderUnwritable, RunNotFound
from hotlap.records import private
from hotlap.records.codec import from_json, to_json

if TYPE_CHECKING:
    from hotlap.records.diagnosis import Diagnosis
    from hotlap.records.observation import Observation
    from hotlap.records.session import Session

VARIABLE = "HOTLAP_DIR"
RESULTS = ("tuning", "diagnosis", "comparison")  # a run with one of these records can be shown
LARGEST = 1 << 30  # bytes per record
Record = TypeVar("Record")


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def id(self) -> str:
        return self.folder.name

    def save(self, name: str, record: object) -> Path:
        """Write a record atomically: a reader sees the old one or the new one, never half."""
        path = self.folder / f"{name}.json"
        draft = path.with_suffix(".tmp")
        try:
            private.write_text(draft, to_json(record))
            draft.replace(path)
        except OSError as error:
            raise RunFolderUnwritable(_unwritable(self.folder, error)) from error
        return path

    def load(self, name: str, kind: type[Record]) -> Record:
        path = self.folder / f"{name}.json"
        if not os.path.lexists(path):
            raise RunNotFound(f"{path} is missing: that run saved no {name}; run the command again")
        try:
            text = private.read(path, LARGEST).decode()
        except private.Unfit as error:
            raise RecordUnreadable(f"{error}; run the command again") from error
        except UnicodeDecodeError as error:
            raise RecordUnreadable(f"{path} is not text ({error.reason}); run the command again") from error
        return from_json(kind, text, str(path))

    def observation(self) -> Observation:
        from hotlap.records.observation import Observation  # large, and not needed by hotlap run

        return self.load("observation", Observation)

    def diagnosis(self) -> Diagnosis:
        from hotlap.records.diagnosis import Diagnosis

        return self.load("diagnosis", Diagnosis)


def home() -> Path:
    """Return the folder for the project in the current directory; it may not exist yet."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else root() / project()


def root() -> Path:
    """Return the folder that holds all projects of this user."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if state.is_absolute():  # the XDG standard ignores relative paths
        return state / "hotlap"
    try:
        user = Path.home()
    except RuntimeError as error:
        raise RunFolderUnwritable(f"there is no home folder ({error}); choose a place: --run-dir DIR") from error
    if not user.is_dir():  # not ours to create
        raise RunFolderUnwritable(f"there is no home folder {user}; choose a place: --run-dir DIR")
    return user.joinpath("Library/Application Support" if sys.platform == "darwin" else ".local/state", "hotlap")


def project() -> str:
    """Return a readable name for the current directory, unique among folders by a hash of its path."""
    here = private.current_folder()
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", Path(here).name).strip("-.")[:40]
    return f"{name or 'project'}-{hashlib.sha256(os.fsencode(here)).hexdigest()[:8]}"


def is_named(run_dir: Path | None) -> bool:
    """Return whether the user chose the folder for runs, and so need not be told where it is."""
    return run_dir is not None or bool(os.environ.get(VARIABLE))


def create(command: Sequence[str], at: Path | None = None) -> Run:
    """Create a run folder; a .gitignore keeps it out of version control where it lies inside a project."""
    place = at or home()
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    name = f"{stamp}-{_subject(command)}"
    prepare(place, "runs")
    try:
        return Run(_fresh(place / "runs", name))
    except OSError as error:
        raise RunFolderUnwritable(_unwritable(place, error)) from error


def prepare(place: Path, name: str) -> Path:
    """Create the named folder in `place`; refuse it where other users could tamper with it."""
    try:
        for folder in (*_above(place), place, place / name):
            private.refuse_foreign_folder(folder)
        private.make_folder(place / name)
        ignore = place / ".gitignore"
        if not os.path.lexists(ignore):
            private.write_text(ignore, "*\n")
    except private.Unfit as error:
        raise RunFolderUnwritable(f"{error}; choose another place: --run-dir DIR") from error
    except OSError as error:
        raise RunFolderUnwritable(_unwritable(place, error)) from error
    return place / name


def _above(place: Path) -> tuple[Path, ...]:
    """Return the folder of all projects, if `place` is directly below it."""
    try:
        return (root(),) if place.parent == root() else ()
    except RunFolderUnwritable:
        return ()


def temporary_root() -> Path:
    """Return a private folder among the temporary files, for use where root() is unusable."""
    for parent in dict.fromkeys(filter(None, (os.environ.get("TMPDIR"), "/tmp", "/var/tmp"))):
        folder = Path(parent) / f"hotlap-{os.getuid()}"
        with suppress(OSError):
            with suppress(private.Unfit):
                private.make_folder(folder)
                private.refuse_foreign_folder(folder)
                if folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK | os.X_OK):
                    return folder
            return Path(tempfile.mkdtemp(prefix="hotlap-", dir=parent))  # somebody else owns that name
    raise RunFolderUnwritable(
        "neither the home folder nor any folder for temporary files is writable; set TMPDIR to one that is"
    )


def temporary_home() -> Path:
    return temporary_root() / project()


def key_root() -> Path:
    """Return the folder of the key; never one that the user names, which may have come with a repository."""
    try:
        folder = root()
        private.refuse_foreign_folder(folder)
    except (private.Unfit, RunFolderUnwritable):
        return temporary_root()
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return folder if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK) else temporary_root()


def _fresh(parent: Path, name: str) -> Path:
    for suffix in ["", *(f"-{number}" for number in range(2, 1000))]:
        folder = parent / (name + suffix)
        try:
            folder.mkdir(private.FOLDER)
        except FileExistsError:
            continue
        folder.chmod(private.FOLDER)
        return folder
    raise FileExistsError(f"a thousand runs are named {name} already")


def every(at: Path | None = None) -> list[Run]:
    """Return all saved runs, the oldest first."""
    folders = [path for path in ((at or home()) / "runs").glob("*") if path.is_dir()]
    return [Run(path) for path in sorted(folders, key=_age)]


def find(wanted: str | None, at: Path | None = None) -> Run:
    """Find a run by its id, the start of its id, or its path; by default the newest that has something to show."""
    if wanted and _is_path_of_run(wanted):
        return Run(Path(wanted))
    runs = every(at)
    if not runs:
        raise RunNotFound(f"no runs in {at or home()}; make one: hotlap profile python train.py")
    if wanted:
        matching = [run for run in runs if run.id.startswith(wanted)]
        if not matching:
            raise RunNotFound(f"no run named {wanted}; the newest is {runs[-1].id}; list them: hotlap runs")
        return next((run for run in matching if run.id == wanted), matching[-1])
    recorded = [run for run in runs if _has_result(run.folder)]  # a run that never stepped has none
    if not recorded:
        raise RunNotFound(
            f"none of the runs in {at or home()} has a result, all ended too early; make one: "
            "hotlap profile python train.py"
        )
    return recorded[-1]


def _has_result(folder: Path) -> bool:
    return any((folder / f"{name}.json").exists() for name in RESULTS) or any(folder.glob("running/decisions-*.json"))


def _is_path_of_run(wanted: str) -> bool:
    """Return whether this names a run by path; a folder that is merely called like the start of an id does not."""
    return Path(wanted).is_dir() and (os.sep in wanted or any(Path(wanted).glob("*.json")))


def _age(folder: Path) -> list[tuple[int, str]]:
    """Return a sort key: oldest first, and the tenth run within a second after the ninth."""
    return [(int(piece), "") if piece.isdecimal() else (0, piece) for piece in re.split(r"(\d+)", folder.name)]


def _subject(command: Sequence[str]) -> str:
    """Return what a person would call the run: the name of the script or module."""
    words = [word for word in command[1:] if word.endswith(".py")]
    if not words and "-m" in command[:-1]:
        words = [command[command.index("-m") + 1].rpartition(".")[2]]
    name = Path(words[0] if words else command[0]).stem
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name)[:40] or "run"


def _unwritable(folder: Path, error: OSError) -> str:
    return f"cannot write {folder} ({error.strerror or error}); choose another place: --run-dir DIR"


def keep_session(folder: Path, session: Session) -> Path:
    """Save a session in its own folder, where the command's processes find it and leave what they observe."""
    try:
        private.make_folder(folder)
    except OSError as error:
        raise RunFolderUnwritable(f"cannot write {folder} ({error.strerror}); choose another: --run-dir DIR") from error
    return Run(folder).save("session", session).resolve()
