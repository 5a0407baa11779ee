"""The command line of hotlap tune: how options are parsed, which are rejected, and what is printed while it runs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from observations import loader, machine, model, observation
from scripted_runner import ScriptedRunner
from tunes import COMMAND, begun, candidate, gains, go_on

from hotlap import store
from hotlap.catalog import entries
from hotlap.cli import tuning_line
from hotlap.cli.run import _finder
from hotlap.cli.tune import tune
from hotlap.errors import HotlapError, ResumeRefused, RunNotFound
from hotlap.judge.verdict import judge
from hotlap.plan import saved_plan
from hotlap.plan.candidates import candidates
from hotlap.process import tree
from hotlap.records.plan import Risk
from hotlap.records.tune_record import TuneRecord, TuneRequest
from hotlap.workflows import profile as profiling
from hotlap.workflows import tune as tuning
from hotlap.workflows.tune.book import Activity, Watcher


class Stopped(Exception):
    """Carries the request of a tune that was not started."""


@pytest.fixture
def started(monkeypatch):
    """Return the request as it reaches the tune, which does not run."""

    def start(request, on_stage, watcher, run_dir):
        raise Stopped(request)

    monkeypatch.setattr(tuning, "tune", start)

    def typed(*words: str):
        done = CliRunner().invoke(tune, words)
        return done.exception.args[0] if isinstance(done.exception, Stopped) else done

    return typed


def test_options_are_parsed(started):
    options = started(
        "--budget", "90s", "--risk", "numeric", "--min-effect", "5%", "--steps", "40", *COMMAND, "--lr", "1"
    )

    assert options.command == (*COMMAND, "--lr", "1")
    assert (options.budget_seconds, options.risk, options.steps) == (90.0, Risk.NUMERIC, 40)
    assert options.minimum == pytest.approx(1.05)
    limits = started("--memory", "16G", "--device-memory", "500MB", *COMMAND)
    assert (limits.memory_mb, limits.device_mb) == (16384.0, 500.0)
    assert started(*COMMAND).budget_seconds == 600.0


@pytest.mark.parametrize(
    ("text", "name", "pattern", "tag"),
    [
        ("val_acc: ([0-9.]+)", "val_acc", "val_acc: ([0-9.]+)", None),
        ("tb:val/acc", "val/acc", None, "val/acc"),
        ("val_acc", "val_acc", None, None),
    ],
)
def test_a_metric_is_named_by_pattern_tensorboard_tag_or_name(text, name, pattern, tag, started):
    found = started("--metric", text, "--higher-is-better", *COMMAND).metric

    assert (found.name, found.pattern, found.tag, found.higher_is_better) == (name, pattern, tag, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "soon", *COMMAND], "write 90s, 10m or 1h"),
        (["--min-effect", "2", *COMMAND], "write 3%"),
        (["--min-effect", "0%", *COMMAND], "write 2%"),
        (["--memory", "lots", *COMMAND], "write 500M or 16G"),
        (["--metric", "acc: [0-9.]+", *COMMAND], "put the value in a group"),
        (["--metric", "acc: ([0-9.+", *COMMAND], "not a regular expression"),
        (["--higher-is-better", *COMMAND], "needs --metric"),
        ([], "give the training command"),
    ],
)
def test_rejects_malformed_options(words, message, started):
    done = started(*words)

    assert done.exit_code == 2
    assert message in done.output


def test_the_newest_unfinished_tune_of_a_command_is_resumed(tmp_path):
    first, last = begun(tmp_path, candidate("gc-pauses")), begun(tmp_path)
    assert tuning.unfinished(None, tmp_path).id == last.id
    go_on(last, ScriptedRunner(gains()), tmp_path)

    assert tuning.unfinished(COMMAND, tmp_path).id == first.id
    assert tuning.unfinished(("python", "other.py"), tmp_path, missing_ok=True) is None
    with pytest.raises(RunNotFound, match=r"start one: hotlap tune"):
        tuning.unfinished(("python", "other.py"), tmp_path)


def test_does_not_resume_a_tune_of_other_source_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = begun(tmp_path / "kept")
    with pytest.raises(ResumeRefused, match=r"source code has changed.*start over: hotlap tune python train.py"):
        resume(run)
    monkeypatch.chdir(tmp_path / "kept")
    with pytest.raises(ResumeRefused, match=rf"resume it there: cd {tmp_path}"):
        resume(run)


def test_does_not_resume_a_tune_whose_candidates_another_version_applied(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = of_this_source(begun(tmp_path / "kept", candidate("resident-data"), candidate("anomaly-mode")))
    with pytest.raises(ResumeRefused, match=r"tries anomaly-mode, which this version of hotlap does not apply; start"):
        resume(run)


def resume(run, **given):
    return tuning.resume(run, Watcher(), lambda *_: None, given=given)


def of_this_source(run):
    record = run.load("tuning", TuneRecord)
    source = saved_plan.source_hash(COMMAND)
    run.save("tuning", replace(record, circumstances=replace(record.circumstances, source=source)))
    return run


def test_does_not_resume_a_tune_under_other_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = of_this_source(begun(tmp_path / "kept", candidate("resident-data")))
    words = ["--resume", "--run-dir", str(tmp_path / "kept")]
    other = CliRunner().invoke(tune, [*words, "--risk", "exact", *COMMAND])

    assert isinstance(other.exception, ResumeRefused)
    assert f"{run.id} was started with a different --risk; leave --risk out" in str(other.exception)
    monkeypatch.setattr(tuning, "go_on", lambda run, *_: (_ for _ in ()).throw(Stopped(run.id)))
    same = CliRunner().invoke(tune, [*words, "--risk", "rounding", "--steps", "40", *COMMAND])
    assert same.exception.args == (run.id,)


@pytest.mark.parametrize("other", [{"hardware": "64 cores"}, {"torch": "9.9"}])
def test_does_not_resume_a_tune_on_another_machine_or_torch(other, tmp_path):
    run, stopped = begun(tmp_path, candidate("resident-data")), ScriptedRunner(gains(resident_data=2.0))
    measured = stopped.run
    stopped.run = lambda spec: measured(spec) if spec.number < 8 else (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(HotlapError, match="interrupted"):
        go_on(run, stopped, tmp_path)
    before = run.load("tuning", TuneRecord)
    with pytest.raises(ResumeRefused, match=r"measured with \w+ .*start over: hotlap tune python train.py"):
        go_on(run, ScriptedRunner(gains(resident_data=2.0), **other), tmp_path)

    assert run.load("tuning", TuneRecord) == before
    assert go_on(run, ScriptedRunner(gains(resident_data=2.0)), tmp_path).tuning.finished


def test_does_not_resume_a_tune_that_is_still_running(tmp_path):
    run = begun(tmp_path)
    tree.remember(os.getppid(), run.folder)
    with pytest.raises(ResumeRefused, match=f"already running in process {os.getppid()}; .*kill {os.getppid()}"):
        go_on(run, ScriptedRunner(gains()), tmp_path)


def test_a_tune_killed_while_observing_starts_again_with_its_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    request = TuneRequest(
        command=COMMAND, budget_seconds=77.0, risk=Risk.EXACT, metric=None, steps=30, minimum=1.05,
        folder=str(tmp_path), device_mb=512.0,
    )  # fmt: skip

    class Killed(BaseException):
        pass

    def profile(options, on_stage):
        options.on_created(store.create(options.command, options.run_dir))
        raise Killed

    monkeypatch.setattr(tuning, "resolve", lambda command: command)
    monkeypatch.setattr(profiling, "profile", profile)
    with pytest.raises(Killed):
        tuning.tune(request, lambda *_: None, Watcher(), tmp_path)
    first = tuning.unfinished(None, tmp_path)
    with pytest.raises(Killed):
        tuning.resume(first, Watcher(), lambda *_: None, tmp_path)
    again = tuning.unfinished(None, tmp_path)

    assert again.id != first.id, "it is in a run of its own"
    assert again.load("asked", TuneRequest) == request
    assert [path.parent.name for path in tmp_path.glob("runs/*/asked.json")] == [again.id]


def test_hotlap_run_uses_a_proven_plan_automatically(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("pass")
    run = begun(tmp_path / "kept", candidate("resident-data"))
    of_this_source(run)
    go_on(run, ScriptedRunner(gains(resident_data=2.0)), tmp_path / "kept")
    found = _finder(COMMAND, None, None, chosen=False)
    chosen = found(tmp_path / "kept")

    assert [choice.name for choice in chosen.choices] == ["resident-data"]
    assert chosen.proven is not None
    Path("train.py").write_text("changed")
    assert found(tmp_path / "kept").title == "exact"


def test_the_progress_line_names_the_trial_the_best_so_far_and_the_time_left():
    doing = Activity(
        trial="stacked-2-compile=default", stage="stacked", arm="new", pair=2, step=30, steps=84, best=2.04, spent=60.0,
        left=250.0, budget=600.0,
    )  # fmt: skip

    assert tuning_line.text(doing) == (
        "hotlap: compile=default on top of what is kept, pair 2 (new), step 30 of 84; best so far 2.0×; "
        "about 4 min left of 10 min"
    )


def test_a_verdict_is_one_line(tmp_path):
    done = go_on(begun(tmp_path, candidate("resident-data")), ScriptedRunner(gains(resident_data=2.0)), tmp_path)
    lines = [tuning_line.verdict_line(verdict) for verdict in done.tuning.verdicts]

    assert lines[0].startswith("hotlap: the baseline against itself, ")
    assert lines[1].startswith("hotlap: kept: resident-data, 2.0")
    assert lines[2].startswith("hotlap: kept: everything kept, against the baseline, 2.0")


def test_a_verdict_line_gives_its_speed_once(tmp_path):
    run = begun(tmp_path, candidate("resident-data"), candidate("gc-pauses"))
    runner = ScriptedRunner(gains(resident_data=2.0, gc_pauses=1.0))
    for verdict in go_on(run, runner, tmp_path, judging=judge).tuning.verdicts[1:]:
        line = tuning_line.verdict_line(verdict)
        assert line.count("×") - line.count("rounding") == 1, line


# Candidates


def test_candidates_are_ordered_by_the_most_they_could_gain():
    seen = observation(loaders=(loader(),), models=(model(),))
    found = candidates(seen, Risk.ROUNDING, 1.02)

    assert [candidate.most for candidate in found.found] == sorted(
        (candidate.most for candidate in found.found), reverse=True
    )
    assert found.found
    named = {candidate.entry for candidate in found.found} | {entry for entry, _ in found.not_tried}
    assert named == set(entries()), "each is tried or it is said why not"


def test_an_entry_that_is_not_tried_is_listed_with_its_reason():
    seen = observation()
    exact = dict(candidates(seen, Risk.EXACT, 1.02).not_tried)
    wide = candidates(seen, Risk.ROUNDING, 1.02)
    rounding = next(candidate.entry for candidate in wide.found if candidate.risk == "rounding")

    assert exact[rounding] == "its risk is rounding; allow it: --risk rounding"
    assert exact["cuda-graphs"] == "the training uses no GPU"
    assert candidates(seen, Risk.ROUNDING, 50.0).found == ()


def test_worker_counts_are_powers_of_two_within_the_cores():
    shares = {"data": 0.6, "forward": 0.2, "backward": 0.2}
    seen = observation(loaders=(loader(workers=0),), machine=machine(cores=9), shares=shares)
    values = [
        candidate.value
        for candidate in candidates(seen, Risk.ROUNDING, 1.02).found
        if candidate.entry == "loader-workers"
    ]

    assert values == ["1", "2", "4", "8"]
    for option in candidates(seen, Risk.NUMERIC, 1.02).found:
        entries()[option.entry].parse(option.value)
