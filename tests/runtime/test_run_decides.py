"""hotlap run as a user types it: the program begins as it is, and what helps is found while it trains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HOTLAP = [sys.executable, "-m", "hotlap"]
TRAIN = """
import glob, sys, time, torch
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
began, epoch, folders = time.time(), -1, sys.argv[2:]  # in which it is told what was decided: goes on until then

def decided():
    files = glob.glob(f"{folders[0]}/runs/*/running/decisions-*.json")
    return {file for file in files if '"is_over": true' in open(file).read()}

before = decided() if folders else set()

def goes_on():
    if epoch < int(sys.argv[1]) - 1:
        return True
    if not folders or time.time() > began + 90:
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
    if epoch < int(sys.argv[1]):
        print(epoch, total.hex(), flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def ran(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=120)


def run(script: Path, *options: str, epochs: int = 40, until_decided: bool = False) -> subprocess.CompletedProcess[str]:
    kept = str(script.parent / "kept")
    command = [sys.executable, str(script), str(epochs), *([kept] if until_decided else [])]
    return ran(*HOTLAP, "run", "--run-dir", kept, *options, *command, cwd=script.parent)


def decisions(script: Path) -> dict[str, object]:
    newest = max((script.parent / "kept" / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    (file,) = newest.glob("running/decisions-*.json")
    return json.loads(file.read_text())  # type: ignore[no-any-return]


def memory(script: Path, **changes: object) -> dict[str, object]:
    (file,) = (script.parent / "kept" / "plans").glob("*.json")
    found = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps(found))
    return found


def test_the_same_is_printed_and_the_data_kept(script: Path) -> None:
    plain = ran(sys.executable, str(script), "40", cwd=script.parent)
    ours = run(script, until_decided=True)
    assert ours.stdout == plain.stdout
    assert ours.returncode == 0
    *_, last = ours.stderr.splitlines()
    assert "times" not in last
    assert "× as fast" in last, ours.stderr
    assert "losses equal to the bit: resident-data" in last
    assert len(ours.stderr.splitlines()) <= 2, "one line when it has decided and one at the end"
    found = decisions(script)
    first = found["tried"][0]  # type: ignore[index]
    assert first["names"] == ["resident-data"]
    assert first["kept"]
    assert first["low"] > 1

    shown = ran(*HOTLAP, "show", "--run-dir", str(script.parent / "kept"), cwd=script.parent)
    assert "resident-data" in shown.stdout
    assert "times as fast" in shown.stdout
    again = ran(*HOTLAP, "show", "--json", "--run-dir", str(script.parent / "kept"), cwd=script.parent)
    assert json.loads(again.stdout)["on"] == found["on"]
    page = script.parent / "page.html"
    drawn = ran(*HOTLAP, "report", "--output", str(page), "--run-dir", str(script.parent / "kept"), cwd=script.parent)
    assert drawn.returncode == 0, drawn.stderr
    assert "What was tried" in page.read_text()
    assert "resident-data" in page.read_text()


def test_what_was_decided_is_remembered(script: Path) -> None:
    first = run(script, until_decided=True)
    assert decisions(script)["is_over"], first.stderr
    second = run(script, until_decided=True)
    assert second.stdout == first.stdout
    assert decisions(script)["remembered"] == bool(memory(script)["on"])


def test_what_is_begun_with_is_allowed_and_was_decided_for_this_very_source(script: Path) -> None:
    first = run(script, until_decided=True)
    memory(script, on=["profiler-marks"])
    assert run(script, until_decided=True).stdout == first.stdout
    assert decisions(script)["remembered"]
    memory(script, on=["autocast", "no-such-thing"])
    assert run(script, until_decided=True).stdout == first.stdout
    assert not decisions(script)["remembered"], "what the risk does not allow is not begun with"
    memory(script, on=["profiler-marks"])
    script.write_text(TRAIN + "# changed")
    assert run(script, until_decided=True).stdout == first.stdout
    assert not decisions(script)["remembered"]


def test_a_training_that_is_soon_over_says_so(script: Path) -> None:
    ours = run(script, epochs=1)
    assert ours.returncode == 0
    (line,) = ours.stderr.splitlines()
    assert "before anything was decided" in line


def test_what_is_on_from_the_start_is_shown(script: Path) -> None:
    run(script, "--at-once", epochs=3)
    shown = ran(*HOTLAP, "show", "--run-dir", str(script.parent / "kept"), cwd=script.parent)
    assert shown.returncode == 0, shown.stderr
    assert "On from the first step: resident-data" in shown.stdout


def test_a_line_does_not_begin_on_that_of_a_progress_bar(script: Path) -> None:
    bar = "import tqdm\nfor _ in tqdm.tqdm(range(100)):\n    break\nbar = tqdm.tqdm(total=9)\n"
    script.write_text(bar + TRAIN)
    ours = run(script, "--at-once", epochs=3)
    assert "\nhotlap: applied: resident-data" in ours.stderr
    assert "]hotlap: " not in ours.stderr


def test_verbose_says_each_thing(script: Path) -> None:
    ours = run(script, "--verbose", until_decided=True)
    assert any(line.startswith("hotlap: step ") and "resident-data" in line for line in ours.stderr.splitlines()), (
        ours.stderr
    )


def test_quiet_says_nothing(script: Path) -> None:
    assert run(script, "--quiet", epochs=10).stderr == ""


def test_verbose_and_quiet_exclude_each_other(script: Path) -> None:
    ours = run(script, "--quiet", "--verbose")
    assert ours.returncode == 2
    assert "exclude each other" in ours.stderr
