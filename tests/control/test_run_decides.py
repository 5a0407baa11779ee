"""Under hotlap run the program starts unchanged, and hotlap finds what helps while it trains."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from once import made_once
from warm import warmed

HOTLAP = [sys.executable, "-m", "hotlap"]
TRAIN = """
import glob, os, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)

class Rows(Dataset):
    def __init__(self):
        self.x = torch.randn(640, 16)
        self.y = self.x.sum(1, keepdim=True)
    def __len__(self):
        return 640
    def __getitem__(self, i):
        x = self.x[i]
        for _ in range(20):
            x = x * 1.001
        return x, self.y[i]

model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Rows(), batch_size=32, shuffle=True)
epochs, until, began, epoch = int(os.environ["EPOCHS"]), os.environ["UNTIL"], time.time(), -1
# until that folder tells that all was decided

def decided():
    files = glob.glob(f"{until}/runs/*/running/decisions-*.json")
    return {file for file in files if '"is_over": true' in open(file).read()}

before = decided() if until else set()

def goes_on():
    if epoch < epochs - 1:
        return True
    if not until or time.time() > began + 90:
        return False
    return not decided() - before

while goes_on():
    epoch += 1
    total = 0.0
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    if epoch < epochs:
        print(epoch, total.hex(), flush=True)
"""


def ran(*command: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "EPOCHS": "40", "UNTIL": "", **more}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=600)


@dataclass(frozen=True)
class Training:
    script: Path
    kept: Path
    is_warm: bool = False  # a decision is remembered only for a Python command

    @property
    def command(self) -> list[str]:
        command = [sys.executable, str(self.script)]
        return warmed(command) if self.is_warm else command

    def run(self, *options: str, epochs: int = 40, until_decided: bool = False) -> subprocess.CompletedProcess[str]:
        command = [*HOTLAP, "run", "--run-dir", str(self.kept), *options, *self.command]
        until = str(self.kept) if until_decided else ""
        return ran(*command, cwd=self.script.parent, EPOCHS=str(epochs), UNTIL=until)

    def hotlap(self, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        return ran(*HOTLAP, verb, *options, "--run-dir", str(self.kept), cwd=self.kept)

    def decisions(self) -> dict[str, Any]:
        newest = max((self.kept / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
        (file,) = newest.glob("running/decisions-*.json")
        return json.loads(file.read_text())  # type: ignore[no-any-return]

    def memory(self, **changes: object) -> dict[str, Any]:
        (file,) = (self.kept / "plans").glob("*.json")
        found = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps(found))
        return found


@pytest.fixture
def training(tmp_path: Path) -> Training:
    (tmp_path / "train.py").write_text(TRAIN)
    return Training(tmp_path / "train.py", tmp_path / "kept", is_warm=True)


@pytest.fixture
def decided(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Returns a training that ran until all was decided, with a copy of its records."""

    def make(folder: Path) -> None:
        (folder / "train.py").write_text(TRAIN)
        ours = Training(folder / "train.py", folder / "kept").run(until_decided=True)
        assert ours.returncode == 0, ours.stderr
        (folder / "stdout").write_text(ours.stdout)
        (folder / "stderr").write_text(ours.stderr)

    folder = made_once(tmp_path_factory, "decided", make)
    shutil.copytree(folder / "kept", tmp_path / "kept")
    return Training(folder / "train.py", tmp_path / "kept")


def test_the_program_prints_the_same_and_its_data_is_kept(decided: Training) -> None:
    folder = decided.script.parent
    plain = ran(*warmed(decided.command), cwd=folder)
    assert (folder / "stdout").read_text() == plain.stdout
    messages = (folder / "stderr").read_text().splitlines()
    assert "times" not in messages[-1]
    assert "× as fast" in messages[-1], messages
    assert "losses equal to the bit: resident-data" in messages[-1]
    assert len(messages) <= 2, "one line when it has decided and one at the end"
    found = decided.decisions()
    assert found["is_over"]
    assert found["tried"][0]["names"] == ["resident-data"]
    assert found["tried"][0]["kept"]
    assert found["tried"][0]["low"] > 1


def test_show_lists_what_was_tried(decided: Training) -> None:
    shown = decided.hotlap("show")
    assert "resident-data" in shown.stdout
    assert "times as fast" in shown.stdout
    assert json.loads(decided.hotlap("show", "--json").stdout)["on"] == decided.decisions()["on"]
    page = decided.kept / "page.html"
    drawn = decided.hotlap("report", "--output", str(page))
    assert drawn.returncode == 0, drawn.stderr
    assert "What was tried" in page.read_text()
    assert "resident-data" in page.read_text()


def test_the_decision_is_remembered(decided: Training) -> None:
    decided.memory(on=["profiler-marks"])  # whether that was faster depends on the load of the machine
    second = decided.run(epochs=2)
    assert (decided.script.parent / "stdout").read_text().startswith(second.stdout)
    assert decided.decisions()["remembered"]


def test_does_not_start_with_entries_that_the_risk_forbids(decided: Training) -> None:
    decided.memory(on=["autocast", "no-such-thing"])
    second = decided.run(epochs=2)
    assert (decided.script.parent / "stdout").read_text().startswith(second.stdout)
    assert not decided.decisions()["remembered"]


def test_does_not_start_with_a_decision_for_another_source(decided: Training) -> None:
    decided.memory(source="0123456789abcdef")
    assert decided.run(epochs=2).returncode == 0
    assert not decided.decisions()["remembered"]


def test_reports_a_training_too_short_to_decide(training: Training) -> None:
    ours = training.run(epochs=1)
    assert ours.returncode == 0
    (line,) = ours.stderr.splitlines()
    assert "before anything was decided" in line


def test_entries_on_from_the_start_are_reported_on_their_own_line_and_shown(training: Training) -> None:
    bar = "import tqdm\nfor _ in tqdm.tqdm(range(100)):\n    break\nbar = tqdm.tqdm(total=9)\n"
    training.script.write_text(bar + TRAIN)
    ours = training.run("--at-once", epochs=3)
    assert "\nhotlap: applied: resident-data" in ours.stderr
    assert "]hotlap: " not in ours.stderr, "not on that of a progress bar"
    shown = training.hotlap("show")
    assert shown.returncode == 0, shown.stderr
    assert "On from the first step: resident-data" in shown.stdout


def test_verbose_reports_every_step(training: Training) -> None:
    ours = training.run("--verbose", until_decided=True)
    assert any(line.startswith("hotlap: step ") and "resident-data" in line for line in ours.stderr.splitlines()), (
        ours.stderr
    )


def test_quiet_prints_nothing(training: Training) -> None:
    assert training.run("--quiet", epochs=10).stderr == ""


def test_verbose_and_quiet_exclude_each_other(training: Training) -> None:
    ours = training.run("--quiet", "--verbose")
    assert ours.returncode == 2
    assert "exclude each other" in ours.stderr
