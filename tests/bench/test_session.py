"""A bench over scripted arms: its order, its record, its handling of broken arms, and how it resumes."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hotlap.bench import process, record, session, workloads
from hotlap.errors import ResumeRefused, RunFolderUnwritable, RunNotFound
from tests.bench.conftest import SURROUNDINGS


def wait_for(condition, seconds=240.0):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it never happened"
        time.sleep(0.02)


def kept_runs(stage) -> int:
    return len(record.load(stage.out).runs) if stage.out.exists() else 0


def test_arms_are_interleaved_and_every_second_round_is_reversed(stage, bench):
    bench(arms=("naive", "lightning", "limit"), seeds=3)
    assert stage.played() == [
        *("moon naive 0", "moon lightning 0", "moon limit 0", "sun naive 0", "sun lightning 0", "sun limit 0"),
        *("moon limit 1", "moon lightning 1", "moon naive 1", "sun limit 1", "sun lightning 1", "sun naive 1"),
        *("moon naive 2", "moon lightning 2", "moon limit 2", "sun naive 2", "sun lightning 2", "sun limit 2"),
    ]
    pids = [call[3] for call in stage.calls()]
    assert len(set(pids)) == len(pids), "each in a process of its own"


def test_all_arms_and_seeds_of_a_workload_train_on_the_same_data(stage, bench):
    bench(workloads=("sun",), arms=("naive", "limit"), seeds=2)
    assert len({call[4] for call in stage.calls()}) == 1


def test_everything_is_benched_when_nothing_is_named(stage, bench):
    result = bench(seeds=1)
    assert result.choice.workloads == ("moon", "sun")
    assert result.choice.arms == ("naive", "lightning", "accelerate", "run", "engine", "limit")
    assert len(result.runs) == 12


def test_the_arm_run_is_the_naive_script_under_hotlap_run(stage, bench):
    result = bench(workloads=("sun",), arms=("naive", "run"), seeds=1)
    assert stage.played() == ["sun naive 0", "sun naive 0"]
    naive, run = result.runs
    assert [line.text for line in run.lines] == [line.text for line in naive.lines]
    start = "python -m hotlap run --run-dir OUT/hotlap --plan fast python sun/naive.py --size tiny --seed 0"
    assert run.command.startswith(start)
    assert run.ended == "trained"
    assert run.errors == ()


def test_the_arm_run_records_the_lines_of_hotlap(stage, bench):
    stage.play(sun__naive={"complaint": "hotlap: applied: something (here)"})
    (run,) = bench(workloads=("sun",), arms=("run",), seeds=1).runs
    nothing = "hotlap: no training step was seen, so nothing was made faster"
    assert run.said == ("hotlap: applied: something (here)", nothing)


def test_the_arm_run_uses_the_options_measured_best(stage, bench, constants):
    options = {("sun", "cpu"): ("--with", "fused-optimizer"), ("moon", "cuda"): ("--with", "fused-optimizer")}
    constants(workloads, BEST=options)
    sun, moon = (bench(out=stage.folder / name, workloads=(name,), arms=("run",), seeds=1).runs[0].command
                 for name in ("sun", "moon"))  # fmt: skip
    assert "--with fused-optimizer python sun/naive.py" in sun
    assert "--plan fast python moon/naive.py" in moon


def test_every_best_set_of_options_is_valid_for_hotlap_run():
    from hotlap.plan.enable_arguments import named

    for options in (*workloads.BEST.values(), workloads.FAST):
        words = list(zip(options[::2], options[1::2], strict=True))
        assert {word for word, _ in words} <= {"--plan", "--with", "--without"}
        plans = [value for word, value in words if word == "--plan"]
        with_ = [value for word, value in words if word == "--with"]
        assert named(*(plans or [None]), None, with_, [value for word, value in words if word == "--without"])


def test_a_failing_command_under_the_arm_run_is_reported_with_its_own_last_line(stage, bench):
    stage.play(sun__naive={"exit": 3, "complaint": "out of luck"})
    (run,) = bench(workloads=("sun",), arms=("run",), seeds=1).runs
    assert (run.ended, run.why) == ("failed", "exit code 3: out of luck")


def test_the_result_contains_every_raw_line_with_its_time(stage, bench):
    bench(workloads=("sun",), arms=("naive", "lightning"), seeds=1)
    result = json.loads(stage.out.read_text())
    assert result["schema"] == 1
    assert result["benchmark"] == "bench"
    assert result["machine"]["cpu"] == "test cpu"
    assert result["versions"] == {"torch": "2.13", "hotlap": "0"}
    assert result["command"] == "hotlap bench sun --arms naive,lightning --size tiny --seeds 1 --device cpu"
    run = result["runs"][1]
    assert [line["text"].split("  ")[0] for line in run["lines"]] == [
        "train 1000 samples", "settings precision=32-true compile=no workers=0", "epoch 1", "epoch 2", "epoch 3",
        "final rmse 0.1000 target 0.2500 reached",
    ]  # fmt: skip
    times = [line["at"] for line in run["lines"]]
    assert times == sorted(times)
    assert 0 < times[0] <= times[-1] <= run["seconds"]
    assert run["exit_code"] == 0
    assert run["command"].startswith("python peer_lightning.py sun --size tiny --seed 0")
    assert str(stage.folder) not in stage.out.read_text(), "results are published: no folder of this machine"


def test_peak_memory_is_that_of_the_arm(stage, bench):
    stage.play(sun__limit={"allocate": 200})
    result = bench(workloads=("sun",), arms=("naive", "limit"), seeds=1)
    naive, limit = (run.peak_host_mb for run in result.runs)
    assert limit > 200
    assert naive < 100
    assert result.host_memory in ("PSS", "RSS")


def test_the_number_of_epochs_is_passed_to_the_arm(stage, bench):
    result = bench(workloads=("sun",), arms=("naive",), seeds=1, epochs=2)
    assert sum(line.text.startswith("epoch") for line in result.runs[0].lines) == 2


@pytest.mark.parametrize(
    ("part", "ended", "why"),
    [
        ({"exit": 3, "complaint": "needs lightning"}, "failed", "exit code 3: needs lightning"),
        ({"signal": "SIGKILL"}, "failed", "killed by SIGKILL, perhaps out of memory: a warning"),
        ({"signal": "SIGSEGV"}, "failed", "killed by SIGSEGV: a warning"),
        ({"last": "finale"}, "unreadable", "it printed no lines `final METRIC"),
        ({"metrics": [float("nan")], "seconds": 0.0}, "unreadable", "an epoch of 0.0000 seconds"),
    ],
)
def test_a_broken_arm_is_reported_and_the_rest_continues(stage, bench, part, ended, why):
    stage.play(moon__limit=part)
    result = bench(arms=("naive", "limit"), seeds=1)
    broken = next(run for run in result.runs if run.key == ("moon", "limit", 0))
    assert broken.ended == ended
    assert why in broken.why
    assert broken.errors[-1] == part.get("complaint", "a warning")
    assert [run.ended for run in result.runs if run is not broken] == ["trained"] * 3


def test_an_arm_that_takes_too_long_is_ended(stage, bench):
    stage.play(sun__limit={"sleep": 600})
    result = bench(workloads=("sun",), arms=("limit", "naive"), seeds=1, max_minutes=0.02)
    assert [run.ended for run in result.runs] == ["time limit", "trained"]
    assert "--max-minutes" in result.runs[0].why
    assert not psutil.pid_exists(int(stage.calls()[0][3]))


def test_a_killed_bench_leaves_no_arm_behind_and_resumes_where_it_was(stage):
    options = ("sun", "--arms", "naive,limit", "--seeds", "2", "--device", "cpu")
    hold = stage.root / "hold-sun-limit-1"
    hold.touch()
    first = stage.start(*options)
    wait_for(lambda: len(stage.calls()) == 3)
    wait_for(lambda: kept_runs(stage) == 2)
    runs, arm = record.load(stage.out).runs, int(stage.calls()[-1][3])
    first.kill()
    first.communicate()
    if psutil.LINUX:
        wait_for(lambda: not psutil.pid_exists(arm))
    hold.unlink()
    again = stage.bench("--resume")
    assert again.returncode == 0, again.stderr
    result = record.load(stage.out)
    assert result.runs[:2] == runs, "what was finished is not run again"
    assert sorted(run.key for run in result.runs) == [
        ("sun", arm, seed) for arm in ("limit", "naive") for seed in (0, 1)
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bench_says_how_to_resume(stage, number):
    (stage.root / "hold-sun-naive-0").touch()
    running = stage.start("sun", "--arms", "naive", "--device", "cpu")
    wait_for(stage.calls)
    running.send_signal(number)
    _, errors = running.communicate(timeout=600)
    assert running.returncode == 130
    assert f"hotlap bench --resume --out {stage.out}" in errors
    assert not psutil.pid_exists(int(stage.calls()[0][3]))


@pytest.mark.thorough
def test_data_whose_generation_was_killed_is_generated_again(stage):
    (stage.root / "hold-data").touch()
    running = stage.start("sun", "--arms", "naive", "--seeds", "1", "--device", "cpu")
    wait_for(lambda: list((stage.folder / "data").glob("sun/.*building*/half.txt")))
    for child in psutil.Process(running.pid).children():
        os.kill(child.pid, signal.SIGKILL)
    _, errors = running.communicate(timeout=600)
    assert running.returncode == 76
    assert "cannot generate the data of sun" in errors
    (stage.root / "hold-data").unlink()
    again = stage.bench("--resume")
    assert again.returncode == 0, again.stderr
    assert not list((stage.folder / "data").glob("sun/.*building*"))


def test_resuming_repeats_broken_runs(stage, bench):
    stage.play(sun__limit={"exit": 1})
    assert [run.ended for run in bench(workloads=("sun",), arms=("naive", "limit"), seeds=1).runs] == [
        "trained",
        "failed",
    ]
    stage.play()
    result = bench(size=None, resume=True)
    assert [run.ended for run in result.runs] == ["trained", "trained"]
    assert stage.played() == ["sun naive 0", "sun limit 0", "sun limit 0"]


def test_resuming_can_add_seeds_arms_and_workloads(stage, bench):
    bench(workloads=("sun",), arms=("naive",), seeds=1)
    result = bench(resume=True, workloads=("moon",), arms=("limit",), seeds=2)
    assert result.choice.workloads == ("sun", "moon")
    assert len(result.runs) == 8
    assert stage.played().count("sun naive 0") == 1


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (replace(SURROUNDINGS, versions={"torch": "2.6", "hotlap": "0"}), "torch 2.13, but here it is 2.6"),
        (
            replace(SURROUNDINGS, machine=replace(SURROUNDINGS.machine, cpu="abacus")),
            "test cpu, but here it is abacus",
        ),
    ],
)
def test_rejects_resuming_under_other_conditions(stage, bench, monkeypatch, other, message):
    bench(workloads=("sun",), arms=("naive",), seeds=1)
    before = stage.out.read_text()
    monkeypatch.setattr(session, "look", lambda device: (other, device))
    with pytest.raises(ResumeRefused, match=message):
        bench(resume=True)
    assert stage.out.read_text() == before


def test_variables_that_affect_speed_are_recorded_and_must_not_change_to_resume(bench, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TORCH_HOME", "/somewhere")
    environment = bench(workloads=("sun",), arms=("naive",), seeds=1).environment
    assert environment["OMP_NUM_THREADS"] == "1"
    assert "TORCH_HOME" not in environment
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with pytest.raises(ResumeRefused, match="OMP_NUM_THREADS 1, but here it is 2"):
        bench(resume=True)


@pytest.mark.parametrize(
    ("typed", "message"),
    [({"size": "report"}, "size tiny, not report"), ({"device": "cuda"}, "cpu, not cuda"), ({"epochs": 7}, "not 7")],
)
def test_rejects_resuming_with_another_size_device_or_length(bench, typed, message):
    bench(workloads=("sun",), arms=("naive",), seeds=1)
    with pytest.raises(ResumeRefused, match=message):
        bench(resume=True, **typed)


def test_rejects_resuming_with_changed_scripts(stage, bench):
    bench(workloads=("sun",), arms=("naive",), seeds=1)
    (stage.root / "sun" / "limit.py").write_text("print('faster')\n")
    with pytest.raises(ResumeRefused, match="scripts of sun"):
        bench(resume=True)


def test_without_out_the_result_goes_to_the_run_folder_and_the_newest_is_resumed(stage, ask, bench):
    bench(out=None, workloads=("sun",), arms=("naive",), seeds=1)
    (result,) = (stage.folder / "kept" / "bench").glob("*.json")
    assert (stage.folder / "kept" / ".gitignore").read_text() == "*\n"
    assert session.prepare(ask(out=None, resume=True)).out == result


def test_reports_that_there_is_nothing_to_resume(ask):
    with pytest.raises(RunNotFound, match="start the bench without --resume"):
        session.prepare(ask(resume=True))
    with pytest.raises(RunNotFound, match="start one without --resume"):
        session.prepare(ask(resume=True, out=None))


def test_an_existing_result_is_not_overwritten(stage, ask):
    stage.out.write_text("precious")
    with pytest.raises(RunFolderUnwritable, match="--resume"):
        session.prepare(ask())
    assert stage.out.read_text() == "precious"


def test_a_failed_save_leaves_the_earlier_result_intact(stage, bench, monkeypatch):
    result = bench(workloads=("sun",), arms=("naive",), seeds=1)
    before = stage.out.read_text()

    def full(self, text, **_):
        with self.open("w") as file:
            file.write(text[: len(text) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunFolderUnwritable, match="No space left on device"):
        record.save(result, stage.out)
    assert stage.out.read_text() == before
    assert not list(stage.folder.glob(".result*")), "no half-written file is left"


def test_an_unwritable_result_is_reported_before_anything_runs(stage, ask):
    (stage.folder / "file").touch()
    with pytest.raises(RunFolderUnwritable, match="choose another place: --out"):
        session.prepare(ask(out=stage.folder / "file" / "result.json"))
    assert stage.calls() == []


def test_published_lines_contain_no_folder_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    lines = [
        f"{tmp_path}/workloads/bloom/naive.py:3: no",
        f"{tmp_path}/packages/lightning/x.py:21: old",
        "plain / text",
    ]
    assert process._relative(lines, tmp_path / "workloads") == [
        "bloom/naive.py:3: no",
        "lightning/x.py:21: old",
        "plain / text",
    ]
