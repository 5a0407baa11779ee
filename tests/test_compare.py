"""hotlap compare proves a slowdown, proves its absence, or proves neither, and a CI can trust its exit code."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from warm import warmed

from hotlap import store
from hotlap.errors import (
    BaselineUnusable,
    BudgetTooSmall,
    HotlapError,
    NoStep,
    NotComparable,
    RunFolderUnwritable,
    TooShort,
)
from hotlap.records.codec import from_json
from hotlap.records.comparison import Comparison, Kind, Result, Side
from hotlap.records.trial import EndReason, TrialStage
from hotlap.report.compare import page as compare_page
from hotlap.trial.runner import Spec
from hotlap.workflows.compare import by_turns
from hotlap.workflows.compare.by_turns import Arm, Means, compare_arms
from hotlap.workflows.compare.speeds import compare_runs, judge, trial_of
from tests.comparisons import Scripted, arms, made_repository, options
from tests.observations import machine, observation
from tests.report import tunings
from tests.report.tunings import sample, trial, verdict

COMMAND = ("python", "train.py")


def compared(tmp_path, script: Scripted, **asked) -> Comparison:
    return compare_arms(arms(tmp_path), Kind.COMMANDS, options(tmp_path, **asked), lambda words: None, script.means())


class TestByTurns:
    def test_reports_a_proven_slowdown(self, tmp_path):
        made = compared(tmp_path, Scripted(0.10))
        assert made.result == Result.REGRESSION
        assert made.why.startswith("now takes ")
        assert made.why.endswith("than old, more than the 3 % allowed")
        assert made.speed.slower

    def test_reports_a_proven_absence_of_a_slowdown(self, tmp_path):
        made = compared(tmp_path, Scripted(0.0))
        assert made.result == Result.NO_REGRESSION

    def test_a_speedup_is_not_a_regression(self, tmp_path):
        made = compared(tmp_path, Scripted(-0.2))
        assert made.result == Result.NO_REGRESSION
        assert "less time" in made.why
        assert made.why.endswith("no slowdown")

    def test_a_slowdown_within_the_allowed_limit_is_not_a_regression(self, tmp_path):
        assert compared(tmp_path, Scripted(0.05), max_slowdown=0.15).result == Result.NO_REGRESSION

    def test_too_much_noise_is_inconclusive(self, tmp_path):
        script = Scripted(0.03, spread=0.08)
        made = compared(tmp_path, script)
        assert made.result == Result.INCONCLUSIVE
        assert "neither proven nor ruled out; it would take " in made.why
        assert len(script.order) == 2 * by_turns.LOOKS[-1]

    def test_arms_alternate_and_stop_once_the_result_is_decided(self, tmp_path):
        script = Scripted(0.30)
        compared(tmp_path, script)
        assert script.order == ["base", "new", "new", "base", "base", "new"]

    def test_identical_arms_are_hardly_ever_called_slower(self, tmp_path):
        results = [compared(tmp_path, Scripted(0.0, spread=0.015, seed=7 + 100 * i)).result for i in range(20)]
        assert results.count(Result.REGRESSION) <= 1

    def test_saves_the_whole_comparison(self, tmp_path):
        made = compared(tmp_path, Scripted(0.10))
        (path,) = (tmp_path / "kept" / "runs").glob("*/comparison.json")
        assert from_json(Comparison, path.read_text(), "test") == made
        assert (made.base.profile, made.new.profile) == ("profile-old", "profile-now")
        assert len(made.trial.samples) == 6

    def test_different_batch_sizes_are_compared_by_samples(self, tmp_path):
        """Twice the batch in twice the time is no slowdown; the runner receives the batch size."""
        sizes = []
        script = Scripted(0.0, looks=(observation(samples_per_step=32.0), observation(samples_per_step=64.0)))
        means = script.means()
        made = compare_arms(
            arms(tmp_path),
            Kind.COMMANDS,
            options(tmp_path),
            lambda words: None,
            Means(
                look=means.look, runner=lambda arm, seen: sizes.append(seen.samples_per_step) or means.runner(arm, seen)
            ),
        )
        assert sizes == [32.0, 64.0]
        assert (made.base.samples_per_step, made.new.samples_per_step) == (32.0, 64.0)


class TestFailures:
    def test_a_new_command_that_fails_twice_is_a_regression(self, tmp_path):
        made = compared(
            tmp_path,
            Scripted(0.0, endings=lambda spec: (EndReason.CRASHED, "ValueError: no") if spec.arm == "new" else None),
        )
        assert made.result == Result.REGRESSION
        assert made.why == "now does not train, and old does: crashed: ValueError: no"

    def test_a_single_failure_is_not_a_regression(self, tmp_path):
        made = compared(
            tmp_path, Scripted(0.0, endings=lambda spec: (EndReason.HUNG, "180 s") if spec.number == 1 else None)
        )
        assert made.result != Result.REGRESSION
        assert ("1", "compare", "new", "no step for too long", "180 s") in compare_page.broken_rows((made.trial,)).rows

    def test_rejects_a_base_that_fails(self, tmp_path):
        with pytest.raises(BaselineUnusable, match="old does not train to the end: out of memory: 8 GB"):
            compared(
                tmp_path,
                Scripted(0.0, endings=lambda spec: (EndReason.OUT_OF_MEMORY, "8 GB") if spec.arm == "base" else None),
            )

    def test_a_new_command_that_never_steps_is_a_regression(self, tmp_path):
        made = compared(tmp_path, Scripted(0.0, looks=(observation(), NoStep("exit code 2 before its first step"))))
        assert made.result == Result.REGRESSION
        assert made.why == "now does not train, and old does: exit code 2 before its first step"
        assert made.speed is None

    def test_rejects_a_base_that_never_steps(self, tmp_path):
        with pytest.raises(BaselineUnusable, match="old does not train: no step"):
            compared(tmp_path, Scripted(0.0, looks=(NoStep("no step"), observation())))

    @pytest.mark.parametrize("which", [0, 1])
    def test_an_error_of_hotlap_itself_is_not_a_result(self, tmp_path, which):
        """A full disk says nothing about the command, whatever its exit code."""
        full = RunFolderUnwritable("no space left")
        full.exit_code = 1
        looks = [observation(), observation()]
        looks[which] = full
        with pytest.raises(RunFolderUnwritable) as raised:
            compared(tmp_path, Scripted(0.0, looks=looks))
        assert raised.value.exit_code == 73

    @pytest.mark.parametrize("which", [0, 1])
    def test_ctrl_c_is_not_a_result(self, tmp_path, which):
        interrupted = HotlapError("interrupted before the first training step")
        interrupted.exit_code = 130
        looks = [observation(), observation()]
        looks[which] = interrupted
        with pytest.raises(HotlapError) as raised:
            compared(tmp_path, Scripted(0.0, looks=looks))
        assert raised.value.exit_code == 130

    def test_rejects_a_command_that_is_too_short(self, tmp_path):
        with pytest.raises(TooShort, match="old is too short to measure"):
            compared(tmp_path, Scripted(0.0, endings=lambda spec: (EndReason.TOO_SHORT, "it ended after 3 steps")))

    def test_reports_a_budget_that_is_too_small_after_the_first_pair(self, tmp_path):
        script = Scripted(0.0)
        with pytest.raises(BudgetTooSmall, match=r"3 processes of each take about \d+ s; give more time: --budget \dm"):
            compared(tmp_path, script, budget_seconds=0.01)
        assert script.order == ["base", "new"]

    def test_no_time_for_another_look_is_inconclusive(self, tmp_path):
        script = Scripted(0.03, spread=0.08)
        made = compared(tmp_path, script, budget_seconds=25.0)  # a scripted pair reports ten seconds
        assert made.result == Result.INCONCLUSIVE
        assert len(script.order) == 2 * by_turns.LOOKS[1]


class TestJudgement:
    def test_no_measured_step_is_inconclusive(self):
        result, why, speed = judge(trial_of(()), 0.03, ("a", "b"))
        assert (result, why, speed) == (Result.INCONCLUSIVE, "no step of a or b was measured", None)

    def test_one_process_each_proves_nothing(self):
        pair = (sample(0, "base", 10.0), sample(1, "new", 30.0))
        result, why, _ = judge(trial_of(pair), 0.03, ("a", "b"))
        assert result is Result.INCONCLUSIVE
        assert "one process each does not show how much processes differ" in why

    def test_one_process_each_rules_nothing_out(self):
        pair = (sample(0, "base", 30.0), sample(1, "new", 10.0))
        assert judge(trial_of(pair), 0.03, ("a", "b"))[0] is Result.INCONCLUSIVE


def tune_run(tmp_path: Path, step_ms: float, seed: int, on: str = "AMD EPYC 9354") -> store.Run:
    """A tune that kept nothing: eight processes of the unchanged command, and one with another choice."""
    ran = tuple(sample(seed + i, "base" if i % 2 else "new", step_ms) for i in range(8))
    other = trial("alone-x", TrialStage.ALONE, (sample(99, "new", 500.0),), new=(tunings.choice("x"),))
    noise = (
        trial("noise", TrialStage.NOISE, ran),
        verdict("noise", TrialStage.NOISE, tunings.Decision.REJECT, "itself"),
    )
    made = tunings.tuning((noise,), machine=on)
    run = store.create(COMMAND, tmp_path / "kept")
    run.save("tuning", replace(made, trials=(*made.trials, other)))
    return run


def profile_run(tmp_path: Path, step: float, **overrides) -> store.Run:
    run = store.create(COMMAND, tmp_path / "kept")
    run.save("observation", observation(step, **overrides))
    return run


class TestSavedRuns:
    def test_two_tunes_are_compared_by_their_baseline_processes(self, tmp_path):
        made = compare_runs(tune_run(tmp_path, 10.0, 0), tune_run(tmp_path, 12.0, 50), options(tmp_path))
        assert made.result == Result.REGRESSION
        assert [len(made.trial.of(arm)) for arm in ("base", "new")] == [8, 8]
        assert made.speed.ratio == pytest.approx(10 / 12, rel=0.02)

    def test_the_reverse_comparison_is_not_a_regression(self, tmp_path):
        made = compare_runs(tune_run(tmp_path, 12.0, 0), tune_run(tmp_path, 10.0, 50), options(tmp_path))
        assert made.result == Result.NO_REGRESSION

    def test_two_profiles_are_inconclusive_and_name_the_command_to_use(self, tmp_path):
        made = compare_runs(profile_run(tmp_path, 10.0), profile_run(tmp_path, 12.0), options(tmp_path))
        assert made.result == Result.INCONCLUSIVE
        assert made.why.endswith("run both again, in alternation: hotlap compare 'COMMAND' 'COMMAND'")

    def test_rejects_runs_of_different_machines(self, tmp_path):
        with pytest.raises(NotComparable, match="different machines"):
            compare_runs(
                profile_run(tmp_path, 10.0), profile_run(tmp_path, 10.0, machine=machine(cores=4)), options(tmp_path)
            )

    def test_rejects_runs_that_measured_nothing(self, tmp_path):
        bare = store.create(COMMAND, tmp_path / "kept")
        with pytest.raises(NotComparable, match="has no measured steps"):
            compare_runs(bare, profile_run(tmp_path, 10.0), options(tmp_path))
        with pytest.raises(NotComparable, match="measured no step"):
            compare_runs(profile_run(tmp_path, 10.0, steps=3), profile_run(tmp_path, 10.0), options(tmp_path))


PROGRAM = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(640, 8), torch.randn(640, 1))
for epoch in range(100):
    for x, y in torch.utils.data.DataLoader(data, batch_size=16):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
    print("epoch", epoch)
"""


def test_a_real_command_is_observed_and_run_and_leaves_no_trace(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    run = store.create(COMMAND, tmp_path / "kept")
    arm = Arm(side=Side(name="it", command=tuple(warmed([sys.executable, "train.py"]))), folder=folder, variables={})
    means = by_turns.local_means(run, options(tmp_path, steps=60), lambda line: None)
    seen, run_id = means.look(arm)
    spec = Spec(number=0, arm="base", choices=(), seed_shift=0, steps=80, least=20, seconds=120.0)
    with by_turns.standing_in(arm):
        sample = means.runner(arm, seen).run(spec)
    assert store.find(run_id, tmp_path / "kept").observation().samples_per_step == 16
    assert (sample.ended, sample.arm) == (EndReason.MEASURED, "base")
    assert sum(block.samples for block in sample.blocks) == 16 * sum(block.steps for block in sample.blocks)
    assert len(sample.losses) >= 60
    assert [path.name for path in folder.iterdir() if path.name != "__pycache__"] == ["train.py"]
    assert "epoch" not in capfd.readouterr().out


@pytest.fixture
def typed(monkeypatch, tmp_path, command_line):
    monkeypatch.setenv("HOTLAP_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return lambda *words: command_line("compare", *words)


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """A repository whose src/ is the working folder."""
    root = made_repository(tmp_path)
    monkeypatch.chdir(root / "src")
    return root


class TestExitCodes:
    def test_one_on_a_proven_regression_zero_otherwise(self, typed, tmp_path):
        base, new = tune_run(tmp_path, 10.0, 0), tune_run(tmp_path, 12.0, 50)
        code, out, _ = typed(base.id, new.id)
        assert code == 1
        assert out.startswith(f"Regression: {new.id} takes ")
        assert typed(new.id, base.id)[0] == 0

    def test_the_allowed_slowdown_may_stand_before_or_after_the_runs(self, typed, tmp_path):
        base, new = tune_run(tmp_path, 10.0, 0), tune_run(tmp_path, 12.0, 50)
        assert typed(base.id, new.id, "--max-slowdown", "40%")[0] == 0
        assert typed("--max-slowdown", "10%", base.id, new.id)[0] == 1

    def test_two_when_inconclusive(self, typed, tmp_path):
        base, new = profile_run(tmp_path, 10.0), profile_run(tmp_path, 12.0)
        code, out, _ = typed(base.id, new.id, "--quiet")
        assert code == 2
        assert out.startswith("Inconclusive: ")
        assert out.count("\n") == 1

    @pytest.mark.parametrize(
        "words",
        [(), ("only-one",), ("a", "b", "--max-slowdown", "3"), ("a", "b", "--budget", "soon"), ("a", "b", "--nope")],
    )
    def test_wrong_usage_has_an_exit_code_of_its_own(self, typed, words):
        assert typed(*words)[0] == 64

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("nonsense", "python x.py"), "nonsense is not a run, a command or a revision"),
            (("python 'x", "python y"), "cannot be read as a command"),
            (("", "python y"), "the command is empty"),
            (("python a", "python b", "--link", "data"), "--link needs two revisions"),
        ],
    )
    def test_bad_input_gets_one_clear_line(self, typed, tmp_path, monkeypatch, words, message):
        monkeypatch.chdir(tmp_path)
        code, _, err = typed(*words)
        assert code == 85
        assert message in err
        assert err.count("\n") == 1

    def test_rejects_a_run_beside_a_command(self, typed, tmp_path):
        code, _, err = typed(tune_run(tmp_path, 10.0, 0).id, "python train.py")
        assert code == 85
        assert "give two runs or two commands" in err

    def test_rejects_revisions_without_a_command(self, typed, repository):
        code, _, err = typed("HEAD~1", "main")
        assert code == 85
        assert "hotlap compare main HEAD -- python train.py" in err

    def test_a_missing_command_exits_with_127(self, typed, repository):
        assert typed("HEAD~1", "main", "--", "no-such-program", "--epochs", "3")[0] == 127

    def test_writes_json_and_markdown_for_ci(self, typed, tmp_path):
        base, new = tune_run(tmp_path, 10.0, 0), tune_run(tmp_path, 12.0, 50)
        typed(base.id, new.id, "--json", str(tmp_path / "a.json"), "--markdown", str(tmp_path / "b" / "c.md"))
        assert json.loads((tmp_path / "a.json").read_text())["result"] == "regression"
        text = (tmp_path / "b" / "c.md").read_text()
        assert text.startswith("### Regression: ")
        assert f"| {base.id} | 8 | " in text

    def test_reports_a_file_that_cannot_be_written(self, typed, tmp_path):
        base, new = tune_run(tmp_path, 10.0, 0), tune_run(tmp_path, 12.0, 50)
        code, _, err = typed(base.id, new.id, "--json", str(tmp_path / "kept" / "runs" / base.id / "tuning.json" / "x"))
        assert code == 73
        assert err.startswith("hotlap: cannot write ")


def test_user_text_is_escaped_in_markdown(tmp_path):
    made = compared(tmp_path, Scripted(0.1))
    odd = replace(made, base=replace(made.base, name="a|b <i>"), why="<b>x</b> | y")
    assert r"\<b\>x\</b\> \| y" in compare_page.markdown(odd)
    assert observation().machine.summary.startswith("AMD EPYC 9354")
