"""A profiled run ends cleanly after its window, at limits and on signals, and bad input gets one clear line."""

import json
import signal
import subprocess
import sys
import time

import pytest
from harness import HOTLAP, PROGRAMS, alone, environment, profile, profiled_once, python, warm, warmed_torchrun
from warm import warmed

QUICK = ("--no-ceiling", "--steps", "20", "--warmup", "3")


@pytest.mark.parametrize("run", ["traced_run", "worker_run"])
def test_the_command_is_ended_cleanly_after_the_window(run, request):
    ran = request.getfixturevalue(run)

    assert ran.code == 0
    assert (ran.folder.parent / "finally.txt").read_text() == "cleaned up"
    assert ran.observation["ended"] == "window complete"
    assert ran.observation["steps"] == 20
    assert len(ran.observation["step_ms"]) == 20
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("program", ["lightning_fit.py", "accelerate_loop.py", "hf_trainer.py"])
def test_frameworks_end_cleanly_too(program, tmp_path):
    ran = profile(warmed(python(program)), tmp_path, "--no-ceiling", "--steps", "4", "--warmup", "3", STEPS="50000")

    assert ran.code == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.observation["steps"] == 4
    assert ran.observation["ended"] == "window complete"
    assert 0 < ran.stdout.count("step ") < 50000


def test_all_ranks_stop_together_and_the_slowest_is_named(tmp_path):
    ran = profile(
        [*warmed_torchrun("--no-python"), *warmed(python("data_parallel.py"))],
        tmp_path,
        "--no-ceiling",
        "--steps",
        "8",
        "--warmup",
        "3",
        STEPS="5000",
    )

    assert ran.code == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.observation["ended"] == "window complete"
    ranks = ran.observation["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert max(ranks, key=lambda rank: rank["own_ms"])["rank"] == 1
    (finding,) = [finding for finding in ran.diagnosis["findings"] if finding["code"] == "straggler-rank"]
    assert "rank 1" in finding["title"].lower()


def test_a_program_that_catches_the_stop_request_is_ended_anyway(tmp_path):
    ran = profile(warmed(python("endless.py", "--fault", "deaf")), tmp_path, *QUICK, HOTLAP_GRACE="0.5")

    assert ran.code == 0, ran.stderr
    assert "STOP_IGNORED" in ran.observation["cautions"]
    assert ran.observation["steps"] == 20


def test_a_failing_program_keeps_its_traceback_and_exit_code_and_gets_a_report(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        (PROGRAMS / "plain_loop.py")
        .read_text()
        .replace("        say(step, loss)", "        if step == 12: raise SystemExit(7)")
    )
    alone = warm([sys.executable, str(script)], tmp_path, PYTHONPATH=str(PROGRAMS))
    ran = profile(warmed([sys.executable, str(script)]), tmp_path, PYTHONPATH=str(PROGRAMS))

    assert (alone.code, ran.code) == (7, 7)
    assert ran.observation["ended"] == "program failed"
    assert len(ran.observation["losses"]) == 12


def test_an_exception_looks_the_same_as_without_hotlap(tmp_path, tmp_path_factory):
    expected = alone(tmp_path_factory, python("broken_dataset.py"))
    ran = profile(python("broken_dataset.py"), tmp_path)

    assert ran.code == expected.code == 1
    assert "ValueError: bad sample" in expected.stderr
    assert ran.stderr.startswith(expected.stderr)
    assert "before its first training step" in ran.stderr[len(expected.stderr) :]


def interrupted(tmp_path, number):
    command = [*HOTLAP, "profile", "--run-dir", str(tmp_path / "kept"), "--steps", "100000", *python("endless.py")]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job inherits it ignored
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not steps_seen(tmp_path):
        time.sleep(0.1)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=600)
    return process.returncode, stderr.decode()


def steps_seen(tmp_path):
    from pathlib import Path

    from hotlap.records.progress import read_progress

    seen = [read_progress(Path(path)) for path in tmp_path.glob("kept/runs/*/observing/progress-*.bin")]
    return any(progress is not None and progress.steps > 30 for progress in seen)


def test_ctrl_c_gives_a_partial_report(tmp_path):
    code, stderr = interrupted(tmp_path, signal.SIGINT)

    assert code == -signal.SIGINT, "as the command dies without us"
    (record,) = tmp_path.glob("kept/runs/*/observation.json")
    seen = json.loads(record.read_text())
    assert seen["ended"] == "interrupted"
    assert seen["steps"] > 5
    assert "Findings" in stderr


def test_a_terminated_run_leaves_no_process_behind(tmp_path):
    code, _ = interrupted(tmp_path, signal.SIGTERM)

    assert code == -signal.SIGTERM
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(tmp_path) not in listing


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (["pythn", "train.py"], 127, "command not found: pythn"),
        (["./train.py"], 127, "command not found: ./train.py"),
        (["true"], 65, "found no Python 3.10 or newer to observe"),
        ([sys.executable, "-I", "-c", "pass"], 65, "without -I"),
        ([sys.executable, "-c", "print('no torch')"], 66, "torch was never imported"),
        ([sys.executable, "-c", "raise SystemExit(3)"], 3, "before its first training step"),
        ([sys.executable, "missing.py"], 2, "before its first training step"),
    ],
)  # fmt: skip
def test_a_command_that_cannot_be_observed_gets_one_clear_line(command, code, says, tmp_path):
    ran = profile(command, tmp_path)

    ours = [line for line in ran.stderr.splitlines() if line.startswith("hotlap:")]
    assert ran.code == code, ran.stderr
    assert len(ours) == 1
    assert says in ours[0]


def test_a_program_that_makes_an_optimizer_but_never_steps_gets_one_clear_line(tmp_path):
    (tmp_path / "train.py").write_text("import torch; torch.optim.SGD([torch.zeros(1)])")
    ran = profile(warmed([sys.executable, "train.py"]), tmp_path)

    assert ran.code == 66, ran.stderr
    (line,) = [line for line in ran.stderr.splitlines() if line.startswith("hotlap:")]
    assert "1 optimizer(s) made" in line


def test_a_script_without_python_in_front_gets_the_command_to_type(tmp_path):
    (tmp_path / "train.py").write_text("pass\n")
    ran = profile(["./train.py"], tmp_path)

    assert ran.code == 126
    assert "type: python ./train.py" in ran.stderr


def test_no_command_is_a_usage_error(tmp_path):
    ran = profile([], tmp_path)

    assert ran.code == 2
    assert "COMMAND" in ran.stderr


def test_torch_too_old_ends_the_command_at_once(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.1.0'\n")
    (tmp_path / "train.py").write_text("import torch, time\nwhile True: time.sleep(1)\n")
    ran = profile([sys.executable, "train.py"], tmp_path, PYTHONPATH=str(tmp_path))

    assert ran.code == 69
    assert "torch 2.1.0" in ran.stderr
    assert "pip install -U torch" in ran.stderr


def test_a_missing_torch_is_reported_with_the_interpreter(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python = str(tmp_path / "env" / "bin" / "python")
    ran = profile([python, "-c", "import torch"], tmp_path)

    assert ran.code == 69
    assert f"torch is not installed in {python}" in ran.stderr


def test_a_program_that_never_steps_is_ended_with_a_partial_report(tmp_path):
    script = tmp_path / "stuck.py"
    script.write_text(
        "import time, torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "loader = DataLoader(TensorDataset(torch.zeros(8, 1)))\n"
        "for batch in loader: pass\n"
        "while True: time.sleep(0.1)\n"
    )
    ran = profile(warmed([sys.executable, str(script)]), tmp_path, "--max-seconds", "5")

    assert ran.code == 75
    assert "no training step within 5 s" in ran.stderr
    assert "1 DataLoader(s) made, 8 batch(es) fetched" in ran.stderr
    assert "--max-seconds 10" in ran.stderr


def test_slow_steps_end_at_the_time_limit_with_a_partial_report(tmp_path):
    command = warmed(python("endless.py", "--fault", "rest"))
    ran = profile(command, tmp_path, "--steps", "100000", "--max-seconds", "6", "--no-ceiling")

    assert ran.code == 0, ran.stderr
    assert 0 < ran.observation["steps"] < 100000


def test_a_run_folder_that_cannot_be_made_is_reported_before_the_command_starts(tmp_path):
    (tmp_path / "kept").write_text("a file is in the way\n")
    marker = tmp_path / "started"
    ran = profile([sys.executable, "-c", f"open({str(marker)!r}, 'w')"], tmp_path)

    assert ran.code == 73
    assert "--run-dir" in ran.stderr
    assert not marker.exists()


def test_hotlap_off_is_inert(tmp_path):
    ran = profile(warmed(python("no_loader.py")), tmp_path, HOTLAP="off")

    assert ran.code == 65
    assert "step 24 loss" in ran.stdout
    assert "HOTLAP=off is set" in ran.stderr


def test_a_bug_of_hotlap_does_not_stop_the_training(tmp_path, tmp_path_factory):
    broken = "import hotlap.observe.loaders as l\ndef f(*a): raise RuntimeError('planted bug')\nl.Loaders.fetched = f\n"
    script = tmp_path / "train.py"
    script.write_text(broken + (PROGRAMS / "plain_loop.py").read_text())
    expected = alone(tmp_path_factory, python("plain_loop.py"))
    command = warmed([sys.executable, str(script)])
    ran = profile(command, tmp_path, "--full", PYTHONPATH=str(PROGRAMS), HOTLAP_STRICT="0")

    assert ran.code == 0, ran.stderr
    assert ran.stdout == expected.stdout
    assert ran.stderr.count("planted bug") == 1
    assert "your training continues" in ran.stderr
    assert "OWN_ERROR" in ran.observation["cautions"]


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory):
    """One quiet run whose results are also written elsewhere."""
    options = ("--json", "out/p.json", "--markdown", "out/p.md", "--quiet")
    command = warmed(python("no_loader.py"))
    return profiled_once(tmp_path_factory, "kept", lambda folder: profile(command, folder, *options))


def test_show_renders_a_saved_run_again(saved_run):
    again = subprocess.run(
        [*HOTLAP, "show", "--run-dir", str(saved_run.folder)], capture_output=True, text=True, env=environment()
    )
    assert again.returncode == 0
    assert saved_run.diagnosis["sentence"].split(":")[0] in again.stdout
    missing = subprocess.run(
        [*HOTLAP, "show", "--run-dir", str(saved_run.folder), "2001"], capture_output=True, text=True, env=environment()
    )
    assert missing.returncode == 72
    assert saved_run.run.name in missing.stderr


def test_json_and_markdown_are_written_to_the_given_paths(saved_run):
    out = saved_run.folder.parent / "out"

    both = json.loads((out / "p.json").read_text())
    assert both["observation"]["losses"] == saved_run.observation["losses"]
    assert both["diagnosis"]["verdict"] in (out / "p.md").read_text().lower()
    assert saved_run.stderr == ""
