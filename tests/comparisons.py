"""Comparisons without processes, and a small repository, for the tests of hotlap compare."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripted_runner import ScriptedRunner

from hotlap.errors import HotlapError
from hotlap.records.comparison import Side
from hotlap.workflows.compare.by_turns import Arm, Means
from hotlap.workflows.compare.speeds import Options
from tests.observations import observation


def options(tmp_path: Path, **overrides) -> Options:
    values = {"max_slowdown": 0.03, "budget_seconds": 600.0, "steps": None, "run_dir": tmp_path / "kept"}
    return Options(**values | overrides)


def arms(tmp_path: Path) -> tuple[Arm, Arm]:
    one, other = (
        Arm(side=Side(name=name, command=(sys.executable, "-c", "")), folder=tmp_path, variables={})
        for name in ("old", "now")
    )
    return one, other


class Scripted:
    """Both arms without processes: `slower` is how much longer the new one takes."""

    def __init__(self, slower: float, spread: float = 0.004, endings=lambda spec: None, looks=None, seed: int = 0):
        self.runners = [
            ScriptedRunner(
                step_seconds=lambda choices, seconds=seconds: seconds,
                between_processes=spread,
                between_blocks=spread,
                endings=endings,
                seed=seed,
                startup_seconds=0.0,
            )
            for seconds in (0.010, 0.010 * (1 + slower))
        ]
        self.looks = looks or (observation(), observation())
        self.order: list[str] = []

    def means(self) -> Means:
        def look(arm):
            seen = self.looks[0 if arm.side.name == "old" else 1]
            if isinstance(seen, HotlapError):
                raise seen
            return seen, f"profile-{arm.side.name}"

        def runner(arm, seen):
            own = self.runners[0 if arm.side.name == "old" else 1]
            told = self.order

            class Telling:
                def run(self, spec):
                    told.append(spec.arm)
                    return own.run(spec)

            return Telling()

        return Means(look=look, runner=runner)


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def made_repository(tmp_path: Path) -> Path:
    """Two commits, an untracked folder of data, and a change that is not committed."""
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    for text in ("one", "two"):
        (root / "src" / "train.py").write_text(text)
        git(root, "add", "src/train.py")
        git(root, "commit", "-q", "-m", text)
    (root / "src" / "train.py").write_text("three, not committed")
    (root / "src" / "data").mkdir()
    (root / "src" / "data" / "rows.csv").write_text("1,2")
    return root
