"""The run folder: .hotlap/runs/<id>/, one JSON file per record, written the moment it exists."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

from hotlap.errors import RecordUnreadable, RunFolderUnwritable, RunNotFound
from hotlap.model.codec import from_json, to_json
from hotlap.model.diagnosis import Diagnosis
from hotlap.model.observation import Observation

FOLDER = ".hotlap"
Record = TypeVar("Record")


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def id(self) -> str:
        return self.folder.name

    def save(self, name: str, record: object) -> Path:
        """Atomic: a reader sees the old record or the new one, never half."""
        path = self.folder / f"{name}.json"
        draft = path.with_suffix(".tmp")
        try:
            draft.write_text(to_json(record), encoding="utf-8")
            draft.replace(path)
        except OSError as error:
            raise RunFolderUnwritable(_unwritable(self.folder, error)) from error
        return path

    def load(self, name: str, kind: type[Record]) -> Record:
        path = self.folder / f"{name}.json"
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise RunNotFound(f"{path} is missing: that run kept no {name}; run the command again") from error
        except UnicodeDecodeError as error:
            raise RecordUnreadable(f"{path} is not text ({error.reason}); run the command again") from error
        return from_json(kind, text, str(path))

    def observation(self) -> Observation:
        return self.load("observation", Observation)

    def diagnosis(self) -> Diagnosis:
        return self.load("diagnosis", Diagnosis)


def home(directory: Path | None = None) -> Path:
    return Path(os.environ.get("HOTLAP_DIR") or (directory or Path.cwd()) / FOLDER)


def create(command: Sequence[str], at: Path | None = None) -> Run:
    """A new run folder, kept out of version control by a .gitignore of its own."""
    root = at or home()
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    name = f"{stamp}-{_subject(command)}"
    try:
        (root / "runs").mkdir(parents=True, exist_ok=True)
        ignore = root / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        return Run(_fresh(root / "runs", name))
    except OSError as error:
        raise RunFolderUnwritable(_unwritable(root, error)) from error


def _fresh(parent: Path, name: str) -> Path:
    for suffix in ["", *(f"-{number}" for number in range(2, 1000))]:
        folder = parent / (name + suffix)
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"a thousand runs named {name}")


def find(wanted: str | None, at: Path | None = None) -> Run:
    """A run by id, by the start of it, or by path; the newest when nothing is named."""
    if wanted and _is_path_of_run(wanted):
        return Run(Path(wanted))
    runs = sorted((path for path in ((at or home()) / "runs").glob("*") if path.is_dir()), key=_age)
    if not runs:
        raise RunNotFound(f"no runs in {at or home()}; make one: hotlap profile python train.py")
    kept = [path for path in runs if (path / "observation.json").exists()]  # a run that never stepped has none
    matching = [path for path in runs if path.name.startswith(wanted)] if wanted else kept or runs
    if not matching:
        raise RunNotFound(f"no run named {wanted}; the newest is {runs[-1].name}")
    return Run(next((path for path in matching if path.name == wanted), matching[-1]))


def _is_path_of_run(wanted: str) -> bool:
    """A folder that only happens to be named like the start of an id is none."""
    return Path(wanted).is_dir() and (os.sep in wanted or any(Path(wanted).glob("*.json")))


def _age(folder: Path) -> list[tuple[int, str]]:
    """Sorts oldest first, and the tenth run of a second after the ninth."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", folder.name)]


def _subject(command: Sequence[str]) -> str:
    """What a person would call the run: the script's or module's name."""
    words = [word for word in command[1:] if word.endswith(".py")]
    if not words and "-m" in command[:-1]:
        words = [command[command.index("-m") + 1].rpartition(".")[2]]
    name = Path(words[0] if words else command[0]).stem
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name)[:40] or "run"


def _unwritable(folder: Path, error: OSError) -> str:
    return f"cannot write {folder} ({error.strerror or error}); choose another place: --run-dir /tmp/hotlap"
