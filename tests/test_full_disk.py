"""A full disk costs one clear line: the command keeps its exit code, and the training does not notice.

A limit on the size of files stands in for the disk: writes fail in the same place without a file system of its own.
"""

import errno
import sys
from pathlib import Path

import pytest
from harness import HOTLAP, PROGRAMS, Ran, bare, profile, warm
from warm import warmed

from hotlap.errors import RunFolderUnwritable
from hotlap.records import private
from hotlap.workflows import profile as workflow

# Python would save what it compiles up to the limit, and read it the next time
FULL = "import resource, sys\nsys.dont_write_bytecode = True\nresource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))\n"
TRAIN = """
import sys
import torch
from common import STEPS, Net, say

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
try:
    for step in range(1, STEPS + 1):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        if STEPS == 24:
            say(step, loss)
finally:
    print("cleaned up")
sys.exit(int(sys.argv[1]))
"""


def ours(ran: Ran) -> list[str]:
    return [line for line in ran.stderr.splitlines() if line.startswith("hotlap:")]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(FULL + TRAIN)
    return path


def test_training_on_a_full_disk_runs_to_its_own_end(script, tmp_path):
    command = [sys.executable, str(script), "7"]
    more = {"PYTHONPATH": str(PROGRAMS), "HOTLAP_STRICT": "0"}
    alone = warm(command, tmp_path, **more)
    ran = profile(warmed(command), tmp_path, "--full", **more)

    assert (alone.code, ran.code) == (7, 7), ran.stderr
    assert ran.stdout == alone.stdout
    (line,) = ours(ran)
    assert "could not be saved" in line
    assert "is the disk full" in line
    assert "--run-dir" in line
    assert "Traceback" not in ran.stderr


def test_on_a_full_disk_the_command_is_still_ended_cleanly_after_the_window(script, tmp_path):
    command = warmed([sys.executable, str(script), "0"])
    more = {"PYTHONPATH": str(PROGRAMS), "HOTLAP_STRICT": "0", "STEPS": "100000000"}
    ran = profile(command, tmp_path, "--steps", "20", "--warmup", "3", **more)

    assert ran.code == 73, ran.stderr
    assert ran.stdout == "cleaned up\n"
    (line,) = ours(ran)
    assert "is the disk full" in line
    assert "exit code 0" in line


@pytest.mark.parametrize(("record", "own", "code"), [("observation", 7, 7), ("diagnosis", 0, 73)])
def test_reports_a_record_that_cannot_be_written_and_keeps_the_exit_code(record, own, code, monkeypatch, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS))
    write = private.write_text

    def full(path: Path, text: str) -> None:
        if path.stem == record:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, text)

    monkeypatch.setattr(private, "write_text", full)
    options = workflow.ProfileOptions(
        command=tuple(warmed([sys.executable, str(tmp_path / "train.py"), str(own)])),
        max_seconds=60.0,
        full=True,
        run_dir=tmp_path / "kept",
    )
    with pytest.raises(RunFolderUnwritable, match=r"No space left on device.*--run-dir") as caught:
        workflow.profile(options, lambda stage, progress, elapsed: None)
    assert caught.value.exit_code == code


@pytest.mark.parametrize("options", [["--at-once"], []])
def test_run_says_what_it_did_where_nothing_can_be_saved(options, script, tmp_path):
    command = [sys.executable, str(script), "7"]
    more = {
        "PYTHONPATH": str(PROGRAMS),
        "HOTLAP_STRICT": "0",
        "STEPS": "120",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    alone = warm(command, tmp_path, **more)
    ran = bare([*HOTLAP, "run", *options, *command], tmp_path, **more)

    assert (alone.code, ran.code) == (7, 7), ran.stderr
    assert ran.stdout == alone.stdout
    assert "failed" not in ran.stderr
    assert "Traceback" not in ran.stderr
