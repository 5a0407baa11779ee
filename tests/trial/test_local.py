"""Trials in real processes are measured and limited, write nothing of the user's and leave nothing running."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import psutil
import pytest
from warm import warmed

from hotlap.errors import RunFolderUnwritable
from hotlap.records.plan import Choice
from hotlap.records.trial import EndReason
from hotlap.records.tune_record import Metric
from hotlap.trial import local, trial_process
from hotlap.trial.local import LocalRunner
from hotlap.trial.runner import Spec
from hotlap.trial.trial_process import Limits

PROGRAM = Path(__file__).parent / "programs" / "saves.py"
QUICK = Limits(idle=1.0, memory_mb=None, grace=0.5)


def spec(number: int = 0, **more) -> Spec:
    values = {"arm": "base", "choices": (), "seed_shift": 0, "steps": 45, "least": 25, "seconds": 60.0}
    return Spec(number=number, **values | more)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "kept" not in path.parts
    }


def test_a_program_that_saves_and_reloads_is_measured_and_writes_nothing(folder):
    shutil.copy(PROGRAM, "train.py")
    (folder / "old").mkdir()
    (folder / "old" / "precious.txt").write_text("the user's")
    (folder / "train.log").write_text("of an earlier run\n")
    before = contents(folder)
    metric = Metric(name="val", pattern=r"val_acc: ([0-9.]+)", tag=None, higher_is_better=True, margin=None)
    runner = LocalRunner(tuple(warmed([sys.executable, "train.py"])), folder / "kept", 4.0, metric)
    base = runner.run(spec())
    other = runner.run(spec(1, arm="new", choices=(Choice(name="profiler-marks"),), readings=3, steps=25))

    assert [sample.ended for sample in (base, other)] == ["measured"] * 2, (base.why, other.why)
    assert contents(folder) == before
    assert list((folder / "kept").iterdir()) == []
    assert len(base.losses) == 45
    assert base.losses[:45] == other.losses[:45], "the same seeds give the same losses, random.random() too"
    assert base.warmup_steps + sum(block.steps for block in base.blocks) == 45
    assert base.blocks[0].samples == 4.0 * base.blocks[0].steps
    assert [reading.value for reading in base.readings] == [0.02, 0.04]
    assert [reading.value for reading in other.readings] == [0.02, 0.04, 0.06], "it went on until the third"
    assert [outcome.name for outcome in other.outcomes] == ["profiler-marks"]
    assert base.outcomes == ()
    assert base.startup_seconds > 0 < base.host_mb
    assert runner.hardware is not None


def script(folder: Path, text: str) -> tuple[str, ...]:
    (folder / "script.py").write_text(text)
    return (sys.executable, str(folder / "script.py"))


SLOW_ITEMS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __init__(self):
        self.x = torch.randn(320, 8)
    def __len__(self):
        return 320
    def __getitem__(self, index):
        row = self.x[index]
        for _ in range(60):
            row = row * 1.0
        return row, row.sum()

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
loader = DataLoader(Slow(), 32, shuffle=True)
open("mine.txt", "w").write("written")
for _ in range(2000):
    for x, y in loader:
        loss = ((model(x)[:, 0] - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_one_process_tries_all_switchable_entries_and_ends_once_decided(folder):
    runner = LocalRunner(tuple(warmed(list(script(folder, SLOW_ITEMS)))), folder / "kept", 32.0)
    choices = (Choice(name="resident-data"), Choice(name="profiler-marks"))
    found = runner.screen(spec(arm="new", choices=choices, steps=10**9, screens=40.0))

    assert found.decisions is not None
    assert found.decisions.is_over
    assert "resident-data" in found.decisions.on
    assert found.seconds < 40
    assert not (folder / "mine.txt").exists()
    assert list((folder / "kept").iterdir()) == []


def test_a_process_that_fails_while_deciding_has_decided_nothing(folder):
    fails = SLOW_ITEMS.replace("        optimizer.step()\n", "        optimizer.step()\n    raise SystemExit(3)\n")
    runner = LocalRunner(tuple(warmed(list(script(folder, fails)))), folder / "kept", 32.0)
    found = runner.screen(spec(arm="new", choices=(Choice(name="resident-data"),), steps=10**9, screens=40.0))

    assert found.decisions is None


STEPPING = """
import os, time
from pathlib import Path
from hotlap.records.progress import Progress, ProgressWriter
folder = Path(os.environ["HOTLAP_SESSION"]).parent
writer = ProgressWriter(folder / "progress-1.bin")
say = lambda steps, state=2: writer.write(Progress(state, 0, 0.0, steps, 0, 0, 0, 0))
"""


@pytest.mark.parametrize(
    ("text", "limits", "seconds", "ended", "why"),
    [
        ("raise ValueError('of mine')", QUICK, 60, EndReason.CRASHED, "ValueError: of mine (exit code 1)"),
        ("raise MemoryError", QUICK, 60, EndReason.OUT_OF_MEMORY, "MemoryError"),
        ("import os; os.kill(os.getpid(), 9)", QUICK, 60, EndReason.OUT_OF_MEMORY, "signal 9"),
        ("print('done')", QUICK, 60, EndReason.NEVER_STEPPED, ""),
        ("import time; time.sleep(60)", QUICK, 0.5, EndReason.OVER_TIME, "step 0 of 45"),
        (f"{STEPPING}\nsay(7)\ntime.sleep(60)", QUICK, 60, EndReason.HUNG, "no step for 1 s after step 7"),
        (
            "import time; x = bytearray(1 << 28); time.sleep(60)",
            Limits(memory_mb=200),
            60,
            EndReason.OVER_MEMORY,
            "200 MB",
        ),
    ],
    ids=["crash", "memory error", "killed", "no step", "over time", "hung", "over memory"],
)
def test_reports_every_ending_and_leaves_nothing_behind(text, limits, seconds, ended, why, folder):
    runner = LocalRunner(script(folder, text), folder / "kept", 1.0, limits=limits)
    sample = runner.run(spec(seconds=seconds))

    assert sample.ended == ended
    assert why in sample.why
    assert list((folder / "kept").iterdir()) == []


CLOSING_DOWN = """
from hotlap.records.codec import SCHEMA, to_json
from hotlap.trial.order import ProcessReport
told = ProcessReport(schema=SCHEMA, pid=1, rank=0, done=True, began=0.0, ends=(0.1,) * 45, marks=(), losses=(),
    readings=(),
            hardware="", torch="", host_mb=1.0, device_mb=None)
(folder / "told-1.json").write_text(to_json(told))
say(45, 4)
(folder / "left").touch()
time.sleep(20)
(folder.parents[1] / "late.txt").touch()
"""


def test_does_not_wait_for_an_interpreter_that_is_slow_to_shut_down(folder, constants):
    """The user's own code has ended by then; the pool of a compiler, for example, may take long."""
    constants(trial_process, CLOSING=0.3)
    text = f"{STEPPING}{CLOSING_DOWN}"
    sample = LocalRunner(script(folder, text), folder / "kept", 1.0, limits=Limits(grace=60.0)).run(spec())

    assert sample.ended == EndReason.MEASURED, sample.why
    assert not (folder / "late.txt").exists()


def test_the_end_of_the_users_code_is_reported_before_earlier_exit_handlers_run(folder):
    """Exit handlers registered earlier, such as those of torch, run after the report."""
    asks = "print('left:', int((Path(os.environ['HOTLAP_SESSION']).parent / 'left').exists()), flush=True)"
    early = f"import atexit, os\nfrom pathlib import Path\natexit.register(lambda: {asks})\n"
    metric = Metric(name="left", pattern=r"left: ([0-9])", tag=None, higher_is_better=True, margin=None)
    sample = LocalRunner(script(folder, early + PROGRAM.read_text()), folder / "kept", 4.0, metric).run(spec())

    assert sample.ended == EndReason.MEASURED, sample.why
    assert [reading.value for reading in sample.readings] == [1.0]


def test_a_process_whose_writes_cannot_be_diverted_does_not_run(folder, constants):
    constants(local, EARLY="hotlap.trial.no_such_module:enter")
    sample = LocalRunner(script(folder, "open('written', 'w')"), folder / "kept", 1.0).run(spec())

    assert sample.ended == EndReason.CRASHED
    assert "cannot prepare" in sample.why
    assert not (folder / "written").exists()


def test_a_full_disk_ends_the_tune_instead_of_rejecting_an_entry(folder):
    runner = LocalRunner(script(folder, "raise OSError(28, 'No space left on device')"), folder / "kept", 1.0)
    with pytest.raises(RunFolderUnwritable, match=r"is full; make room"):
        runner.run(spec())


def test_children_and_grandchildren_end_with_the_command(folder):
    grandchild = "import time; time.sleep(617)"
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {grandchild!r}], start_new_session=True)"
    text = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {child + "; import time; time.sleep(617)"!r}])
time.sleep(600)
"""
    runner = LocalRunner(script(folder, text), folder / "kept", 1.0, limits=QUICK)
    assert runner.run(spec(seconds=3.0)).ended == EndReason.OVER_TIME
    left = [line for line in _command_lines() if "time.sleep(617)" in line or str(folder) in line]
    assert left == [], "not even one that left the group"


def _command_lines() -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        found.append(" ".join(process.info["cmdline"] or []))
    return found


def test_a_program_that_does_not_end_after_the_measurement_is_killed(folder):
    text = f"""{STEPPING}
from hotlap.records.codec import to_json
from hotlap.trial.order import ProcessReport
ends = tuple(0.1 * step for step in range(1, 46))
told = ProcessReport(schema=1, pid=1, rank=0, done=True, began=0.05, ends=ends, marks=(), losses=(1.0,) * 45,
            readings=(),
            hardware="x", host_mb=1.0, device_mb=None)
(folder / "told-1.json").write_text(to_json(told))
say(45, 4)
time.sleep(600)
"""
    sample = LocalRunner(script(folder, text), folder / "kept", 1.0, limits=QUICK).run(spec())

    assert sample.ended == EndReason.MEASURED
    assert len(sample.losses) == 45


def test_processes_left_by_a_killed_hotlap_are_ended_first(folder):
    import subprocess

    from hotlap.process import tree

    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    place = folder / "kept" / "process-0003"
    place.mkdir(parents=True)
    tree.remember(left.pid, place)
    LocalRunner(script(folder, "pass"), folder / "kept", 1.0).run(spec(3))

    assert left.wait(10) == -9


def test_a_process_that_outlives_hotlap_is_ended(folder):
    """hotlap itself is killed with SIGKILL while a process of a trial runs."""
    import signal
    import subprocess

    pid_file = folder / "kept" / "child.pid"
    (folder / "kept").mkdir()
    text = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    command = script(folder, text)
    runner = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from hotlap.trial.local import LocalRunner
from hotlap.trial.runner import Spec
LocalRunner({command!r}, Path({str(folder / "kept" / "p")!r}), 1.0).run(
    Spec(number=0, arm="base", choices=(), seed_shift=0, steps=9, least=1, seconds=600.0))
"""
    hotlap = subprocess.Popen([sys.executable, "-c", runner])
    child = _wait_for(lambda: _pid(folder))
    hotlap.send_signal(signal.SIGKILL)
    hotlap.wait()

    if sys.platform == "linux":
        assert _wait_for(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie")
    else:
        os.kill(child, signal.SIGKILL)


def _pid(folder: Path) -> int | None:
    found = list((folder / "kept").rglob("child.pid"))
    return int(found[0].read_text()) if found and found[0].read_text() else None


def _wait_for(question):
    for _ in range(200):
        if answer := question():
            return answer
        time.sleep(0.05)
    return None
