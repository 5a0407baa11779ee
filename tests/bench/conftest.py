"""A folder of scripted workloads and a bench over it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import WARM_HOTLAP
from warm import warmed

from hotlap.bench import session
from hotlap.bench.session import BenchRequest
from hotlap.bench.surroundings import Surroundings
from hotlap.records.observation import Machine

HERE = Path(__file__).parent
WORKLOADS = HERE.parents[1] / "workloads"
MACHINE = Machine(
    cpu="test cpu", cores=2, memory_mb=1000.0, system="Linux", gpu=None, gpus=0, python="3.11", torch="2.13", cuda=None,
    cudnn=None, versions={},
)  # fmt: skip
SURROUNDINGS = Surroundings(machine=MACHINE, versions={"torch": "2.13", "hotlap": "0"}, cuda=False)


@dataclass(frozen=True)
class Stage:
    """The folder of a bench with scripted workloads."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "workloads"

    @property
    def out(self) -> Path:
        return self.folder / "result.json"

    def play(self, **parts: dict) -> None:
        """Script the arms, as in play(sun__naive={"exit": 3})."""
        (self.root / "play.json").write_text(json.dumps({key.replace("__", " "): part for key, part in parts.items()}))

    def calls(self) -> list[tuple[str, ...]]:
        path = self.root / "calls.txt"
        return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []

    def played(self) -> list[str]:
        return [" ".join(call[:3]) for call in self.calls()]

    def environment(self) -> dict[str, str]:
        own = {"HOTLAP_WORKLOADS": str(self.root), "HOTLAP_DATA": str(self.folder / "data")}
        return {**os.environ, **own, "HOTLAP_DIR": str(self.folder / "kept")}

    def command(self, *arguments: str) -> list[str]:
        """The command in a process that has already imported it."""
        return warmed([*WARM_HOTLAP, *self.words(*arguments)])

    def words(self, *arguments: str) -> list[str]:
        return ["bench", "--size", "tiny", "--out", str(self.out), *arguments]

    def bench(self, *arguments: str, as_typed: bool = False) -> subprocess.CompletedProcess[str]:
        typed = [sys.executable, "-m", "hotlap", *self.words(*arguments)]
        return subprocess.run(
            typed if as_typed else self.command(*arguments),
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments), env=self.environment(), cwd=self.folder, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job inherits it ignored
        )  # fmt: skip


class Silent:
    def making_data(self, *_):
        pass

    def running(self, *_):
        pass

    def ended(self, *_):
        pass


@pytest.fixture
def stage(tmp_path, monkeypatch) -> Stage:
    """Two workloads, `moon` and `sun`, whose arms are scripted; the machine is one that does not exist."""
    made = Stage(tmp_path)
    made.root.mkdir()
    shutil.copy(WORKLOADS / "cache.py", made.root)
    for name in ("moon", "sun"):
        (made.root / name).mkdir()
        shutil.copy(HERE / "generator.py", made.root / name / "data.py")
        for arm in ("naive", "fast", "limit"):
            shutil.copy(HERE / "arm.py", made.root / name / f"{arm}.py")
    for peer in ("lightning", "accelerate"):
        shutil.copy(HERE / "arm.py", made.root / f"peer_{peer}.py")
    made.play()
    for name, value in made.environment().items():
        if name.startswith("HOTLAP"):
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(session, "look", lambda device: (SURROUNDINGS, device or "cpu"))
    return made


@pytest.fixture
def ask(stage):
    """Return a function that makes the request of a user who gave only these options."""

    def bench_request(**typed) -> BenchRequest:
        unsaid = dict.fromkeys(("workloads", "arms", "size", "device", "seeds", "epochs", "out", "max_minutes"))
        return BenchRequest(**{**unsaid, "resume": False, "out": stage.out, "size": "tiny", **typed})

    return bench_request


@pytest.fixture
def bench(ask):
    """Return a function that runs a whole bench in this process."""

    def run(**typed):
        return session.perform(session.prepare(ask(**typed)), Silent())

    return run
