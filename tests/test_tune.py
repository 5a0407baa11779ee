"""hotlap tune on a scripted runner: which trials run in which order, what is kept, and that no result is lost."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from observations import observation
from scripted_runner import ScriptedRunner, falling_losses
from tunes import COMMAND, begun, candidate, gains, go_on, one_rule_judge, screened

from hotlap import store
from hotlap.cli.tuning_line import verdict_line
from hotlap.errors import (
    BaselineUnusable,
    BudgetTooSmall,
    CannotRunTwice,
    HotlapError,
    MetricNeverSeen,
    RunFolderUnwritable,
    RunNotFound,
    TooShort,
)
from hotlap.plan import saved_plan, signature
from hotlap.plan.files import read
from hotlap.records.plan import Choice, Outcome, Plan
from hotlap.records.trial import EndReason, MetricValue, TrialStage
from hotlap.records.tune_record import Metric, TuneRecord
from hotlap.records.verdict import Decision
from hotlap.report.tune import rows as tune_rows
from hotlap.report.tune.coverage import not_covered
from hotlap.workflows.tune.book import Watcher
from hotlap.workflows.tune.length import length
from hotlap.workflows.tune.resumption import unfinished

GAINS = gains(
    resident_data=2.0, print_thread=1.05, gc_pauses=1.0, fused_optimizer=1.3, compile_default=1.2, profiler_marks=1.4
)
LAST = 21.0  # seconds of the last stage, which has three processes ten times as long
FOUND = [
    candidate("resident-data"),
    candidate("profiler-marks", most=0.4),
    candidate("fused-optimizer", most=0.3),
    candidate("gc-pauses", most=0.2),
]


@pytest.fixture
def on_disk():
    """Request this in a test that needs records on disk."""


@pytest.fixture(autouse=True)
def in_memory(request, monkeypatch):
    """Other tests keep records in memory, because writing them takes most of the time."""
    if "on_disk" not in request.fixturenames:
        records = {}
        monkeypatch.setattr(
            store.Run, "save", lambda run, name, record: records.__setitem__((run.folder, name), record)
        )
        monkeypatch.setattr(store.Run, "load", lambda run, name, kind: records[run.folder, name])


def names(choices) -> list[str]:
    return [choice.name for choice in choices]


def trial_names(tuning: TuneRecord) -> list[str]:
    return [trial.name for trial in tuning.trials]


def test_each_candidate_is_tried_alone_then_stacked_and_finally_all_together(tmp_path):
    run = begun(tmp_path, *FOUND)
    done = go_on(run, ScriptedRunner(GAINS), tmp_path)

    assert trial_names(done.tuning) == [
        "noise",
        "alone-resident-data",
        "alone-profiler-marks",
        "alone-fused-optimizer",
        "alone-gc-pauses",
        "stacked-2-profiler-marks",
        "stacked-3-fused-optimizer",
        "stacked-4-gc-pauses",
        "final-3",
        "lasting-3",
    ]
    assert names(done.tuning.kept) == ["resident-data", "profiler-marks", "fused-optimizer"]
    assert done.tuning.finished
    assert done.tuning.speedup.speed.ratio == pytest.approx(2.0 * 1.4 * 1.3, rel=0.02)
    assert done.tuning.speedup.stage == "final"


def test_winners_of_the_screening_are_proven_together_in_fresh_processes(tmp_path):
    """An entry that the screening switched off is not tried again; one that cannot be switched is tried on top."""
    runner = ScriptedRunner(GAINS, screened=screened("resident-data", "fused-optimizer", off=("gc-pauses",)))
    done = go_on(begun(tmp_path, *FOUND), runner, tmp_path)

    assert trial_names(done.tuning)[:2] == ["noise", "screened-2"]
    assert not any("gc-pauses" in name for name in trial_names(done.tuning))
    assert dict(done.tuning.not_tried)["gc-pauses"].startswith("screened while one process trained: 0.90 times")
    assert {"resident-data", "fused-optimizer"} <= set(names(done.tuning.kept))
    assert done.tuning.speedup.stage == "final"
    assert done.tuning.seconds > 7.0


def test_a_plan_of_screening_winners_only_is_not_proven_twice(tmp_path):
    runner = ScriptedRunner(GAINS, screened=screened("resident-data", "fused-optimizer"))
    done = go_on(begun(tmp_path, FOUND[0], FOUND[2]), runner, tmp_path)

    assert trial_names(done.tuning) == ["noise", "screened-2", "lasting-2"]
    assert done.tuning.speedup.trial == "screened-2"
    assert done.tuning.speedup.speed.ratio == pytest.approx(2.0 * 1.3, rel=0.02)


def test_screening_winners_that_do_harm_are_tried_one_by_one(tmp_path):
    def losses(choices, seed_shift, steps):
        found = falling_losses(choices, seed_shift, steps)
        return tuple(loss * 1.1 for loss in found) if "fused-optimizer" in names(choices) else found

    runner = ScriptedRunner(GAINS, losses=losses, screened=screened("resident-data", "fused-optimizer"))
    done = go_on(begun(tmp_path, FOUND[0], FOUND[2]), runner, tmp_path)

    assert names(done.tuning.kept) == ["resident-data"]


def test_a_resumed_tune_does_not_screen_again(tmp_path):
    run = begun(tmp_path, *FOUND)
    first = ScriptedRunner(GAINS, screened=screened("resident-data"))
    whole = go_on(run, first, tmp_path).tuning

    second = ScriptedRunner(GAINS, screened=screened("fused-optimizer"))
    again = go_on(run, second, tmp_path).tuning

    assert second.ran == []
    assert again.kept == whole.kept


def test_arms_alternate_in_fresh_processes_and_a_pair_shares_its_seeds(tmp_path):
    runner = ScriptedRunner(GAINS)
    go_on(begun(tmp_path, FOUND[0]), runner, tmp_path)

    assert [(spec.arm, spec.seed_shift) for spec in runner.ran[6:10]] == [
        ("base", 0),
        ("new", 0),
        ("new", 1),
        ("base", 1),
    ]
    assert [spec.number for spec in runner.ran] == list(range(len(runner.ran)))
    assert {spec.steps for spec in runner.ran[:-2]} == {40}
    assert [(spec.arm, spec.seed_shift, spec.steps) for spec in runner.ran[-2:]] == [("base", 0, 400), ("new", 0, 400)]


def test_the_baseline_runs_against_itself_even_without_candidates(tmp_path):
    runner = ScriptedRunner(GAINS)
    done = go_on(begun(tmp_path), runner, tmp_path)

    assert trial_names(done.tuning) == ["noise"]
    assert all(spec.choices == () for spec in runner.ran)
    assert done.tuning.kept == ()
    assert done.tuning.speedup is None


def test_the_plan_is_saved_where_hotlap_run_finds_it(tmp_path, on_disk):
    run = begun(tmp_path, *FOUND)
    done = go_on(run, ScriptedRunner(GAINS), tmp_path)
    plan, is_signed = read(saved_plan.place(tmp_path, COMMAND), store.root())

    assert is_signed
    assert done.plan == saved_plan.place(tmp_path, COMMAND)
    assert names(plan.choices) == names(done.tuning.kept)
    assert plan.proven == done.tuning.circumstances
    assert run.load("plan", Plan) == plan


def undecided(trial, *rest, **options):
    """Judges like one_rule_judge, but could never tell whether anything is faster."""
    verdict = one_rule_judge(trial, *rest, **options)
    return replace(verdict, decision=Decision.INCONCLUSIVE) if verdict.stage != TrialStage.NOISE else verdict


def test_an_inconclusive_tune_takes_nothing_from_hotlap_run(tmp_path, on_disk):
    go_on(begun(tmp_path, *FOUND), ScriptedRunner(GAINS), tmp_path)
    place = saved_plan.place(tmp_path, COMMAND)
    before = place.read_text()
    again = go_on(begun(tmp_path, *FOUND), ScriptedRunner(GAINS), tmp_path, judging=undecided)

    assert again.tuning.kept == ()
    assert place.read_text() == before


def test_a_tune_that_rejects_what_was_proven_takes_it_from_hotlap_run(tmp_path, on_disk):
    go_on(begun(tmp_path, FOUND[0]), ScriptedRunner(GAINS), tmp_path)
    go_on(begun(tmp_path, FOUND[0]), ScriptedRunner(gains(resident_data=0.5)), tmp_path)

    plan, _ = read(saved_plan.place(tmp_path, COMMAND), store.root())
    assert plan.choices == ()


def test_a_candidate_that_fails_on_top_of_the_others_is_left_out(tmp_path):
    """Two candidates are fast alone and slow together."""

    def step_seconds(choices):
        both = {"profiler-marks", "resident-data"} <= set(names(choices))
        return GAINS(choices) * (3.0 if both else 1.0)

    done = go_on(begun(tmp_path, *FOUND), ScriptedRunner(step_seconds), tmp_path)

    assert names(done.tuning.kept) == ["resident-data", "fused-optimizer"]
    decisions = {verdict.trial: verdict.decision for verdict in done.tuning.verdicts}
    assert decisions["stacked-2-profiler-marks"] == "reject"
    assert decisions["final-2"] == "keep"


def waiting_for_data(data_gain: float):
    """A step waits for data in eight of ten milliseconds; garbage collection takes a tenth of the rest."""

    def step_seconds(choices):
        data = 0.008 / (data_gain if "resident-data" in names(choices) else 1.0)
        return data + 0.002 * (0.9 if "gc-pauses" in names(choices) else 1.0)

    return step_seconds


@pytest.mark.parametrize(("data_gain", "expected"), [(40.0, ["resident-data", "gc-pauses"]), (1.2, ["resident-data"])])
def test_a_candidate_without_gain_is_tried_again_once_the_step_is_much_shorter(data_gain, expected, tmp_path):
    found = (candidate("resident-data"), candidate("gc-pauses", most=0.1))
    runner = ScriptedRunner(waiting_for_data(data_gain), between_processes=0.0, between_blocks=0.0)
    done = go_on(begun(tmp_path, *found, minimum=1.05), runner, tmp_path)
    decisions = {verdict.trial: verdict.decision for verdict in done.tuning.verdicts}

    assert decisions["alone-gc-pauses"] == "reject"
    assert names(done.tuning.kept) == expected
    assert ("stacked-2-gc-pauses" in decisions) == (len(expected) == 2)


def test_a_refused_candidate_is_tried_again_on_top_of_the_kept_ones(tmp_path):
    """CUDA graphs refuse to work beside forking workers; data on the device needs no workers."""

    def outcomes(choices):
        alone = names(choices) == ["cuda-graphs"]
        status, why = ("refused", "workers fork") if alone else ("applied", "")
        return tuple(Outcome(name=choice.name, code="", status=status, why=why) for choice in choices)

    found = (candidate("resident-data"), candidate("cuda-graphs", most=0.4))
    runner = ScriptedRunner(gains(resident_data=1.1, cuda_graphs=1.5), outcomes=outcomes)
    done = go_on(begun(tmp_path, *found), runner, tmp_path)
    why = {verdict.trial: verdict.why for verdict in done.tuning.verdicts}

    assert why["alone-cuda-graphs"] == "refused: workers fork"
    assert names(done.tuning.kept) == ["resident-data", "cuda-graphs"]
    assert done.tuning.speedup.trial == "final-2"


def test_a_harmful_candidate_gets_no_second_chance(tmp_path):
    def losses(choices, seed_shift, steps):
        good = falling_losses(choices, seed_shift, steps)
        return tuple(loss * 1.5 for loss in good) if names(choices) == ["profiler-marks"] else good

    done = go_on(begun(tmp_path, *FOUND[:2]), ScriptedRunner(GAINS, losses=losses), tmp_path)

    assert names(done.tuning.kept) == ["resident-data"]
    assert "stacked-2-profiler-marks" not in trial_names(done.tuning)


def test_a_stack_that_fails_in_the_final_trial_loses_its_last_entry(tmp_path):
    def judging(trial, noise, request, earlier):
        verdict = one_rule_judge(trial, noise, request)
        return replace(verdict, decision="reject") if trial.name == "final-3" else verdict

    done = go_on(begun(tmp_path, *FOUND), ScriptedRunner(GAINS), tmp_path, judging=judging)

    assert names(done.tuning.kept) == ["resident-data", "profiler-marks"]
    assert done.tuning.speedup.trial == "final-2"


def late(name: str):
    """Losses that are wrong from step 100 on when this entry is applied."""

    def losses(choices, seed_shift, steps):
        good = falling_losses(choices, seed_shift, steps)
        return good[:100] + tuple(1.5 * loss for loss in good[100:]) if name in names(choices) else good

    return losses


def test_an_entry_that_does_harm_later_is_removed_and_the_rest_is_proven_again(tmp_path):
    done = go_on(begun(tmp_path, *FOUND), ScriptedRunner(GAINS, losses=late("profiler-marks")), tmp_path)

    assert names(done.tuning.kept) == ["resident-data", "fused-optimizer"]
    assert trial_names(done.tuning)[-7:] == [
        "final-3",
        "lasting-3",
        "lasting-of-resident-data",
        "lasting-of-profiler-marks",
        "lasting-of-fused-optimizer",
        "final-2",
        "lasting-2",
    ]
    assert (done.tuning.speedup.trial, done.tuning.lasting.trial) == ("final-2", "lasting-2")
    rows = {row.name: row for row in tune_rows.rows(done.tuning)}
    assert rows["profiler-marks"].state == "left out"
    assert "over the longer run" in rows["profiler-marks"].why


def test_the_next_fastest_is_proven_when_the_fastest_does_harm_later(tmp_path):
    """Both candidates gain the same time, so the second adds nothing on top of the first."""

    def step_seconds(choices):
        return 0.01 / max([1.0, *({"resident-data": 2.0, "profiler-marks": 1.9}[choice.name] for choice in choices)])

    runner = ScriptedRunner(step_seconds, losses=late("resident-data"))
    done = go_on(begun(tmp_path, *FOUND[:2]), runner, tmp_path)

    assert names(done.tuning.kept) == ["profiler-marks"]
    assert (done.tuning.speedup.trial, done.tuning.lasting.trial) == ("final-1-again", "lasting-1-again")


def test_nothing_is_kept_when_the_only_candidate_does_harm_later(tmp_path):
    done = go_on(begun(tmp_path, FOUND[0]), ScriptedRunner(GAINS, losses=late("resident-data")), tmp_path)

    assert done.tuning.kept == ()
    assert done.tuning.speedup is None


def test_a_small_budget_shortens_the_last_stage_and_the_report_says_so(tmp_path):
    slow = observation(step_ms=(400.0,) * 20)
    runner = ScriptedRunner(lambda choices: 40 * GAINS(choices))
    done = go_on(begun(tmp_path, FOUND[0], seen=slow, budget=280.0), runner, tmp_path)
    steps = runner.ran[-1].steps

    assert names(done.tuning.kept) == ["resident-data"]
    assert (done.tuning.lasting.stage, 60 <= steps < 400) == ("lasting", True)
    assert f"Anything after {steps} steps." in not_covered(done.tuning)
    assert not_covered(replace(done.tuning, lasting=None))[0] == (
        "Anything after 40 steps: the budget did not cover a longer run; give a larger --budget."
    )


def test_the_last_stage_takes_an_epoch_ten_times_the_steps_or_the_whole_short_run():
    known = length(observation(), begun_asked(observation(), budget=3600.0, steps=40))
    for epoch, own, steps in ((None, None, 400), (300, None, 300), (5000, None, 400), (8, None, 120), (8, 390, 390)):
        assert replace(known, epoch=epoch, own=own).lasting(40) == steps


def test_a_candidate_that_excludes_a_kept_one_is_not_stacked(tmp_path):
    found = [candidate("activation-checkpointing"), candidate("inplace-activations", most=0.4)]
    runner = ScriptedRunner(gains(activation_checkpointing=2.0, inplace_activations=1.5))
    done = go_on(begun(tmp_path, *found), runner, tmp_path)

    assert names(done.tuning.kept) == ["activation-checkpointing"]
    why = "faster alone, but it cannot be combined with activation-checkpointing, which gains more"
    assert ("inplace-activations", why) in done.tuning.not_tried
    assert done.tuning.speedup.trial == "final-1"


def test_a_harmful_candidate_is_not_kept_however_fast(tmp_path):
    def losses(choices, seed_shift, steps):
        good = falling_losses(choices, seed_shift, steps)
        return tuple(loss * 1.5 for loss in good) if "resident-data" in names(choices) else good

    done = go_on(begun(tmp_path, *FOUND[:2]), ScriptedRunner(GAINS, losses=losses), tmp_path)

    assert names(done.tuning.kept) == ["profiler-marks"]


@pytest.mark.parametrize("ended", [reason for reason in EndReason if reason is not EndReason.MEASURED])
def test_a_process_that_breaks_is_recorded_and_rejected_and_the_next_candidate_is_tried(ended, tmp_path):
    def endings(spec):
        return (ended, "as scripted") if "resident-data" in names(spec.choices) else None

    runner = ScriptedRunner(GAINS, endings=endings)
    done = go_on(begun(tmp_path, *FOUND[:2]), runner, tmp_path)
    verdict = done.tuning.verdicts[1]

    assert (verdict.decision, verdict.why) == ("reject", f"{ended}: as scripted")
    assert sum("resident-data" in names(spec.choices) for spec in runner.ran) == 1, "it is not run again"
    assert done.tuning.trials[1].samples[-1].ended == ended
    assert names(done.tuning.kept) == ["profiler-marks"]


def test_nothing_is_stacked_on_a_kept_candidate_that_then_fails(tmp_path):
    """The kept candidates are the baseline of a stack: when they fail repeatedly, so does the stack."""

    def endings(spec):
        stacked = spec.arm == "base" and names(spec.choices) == ["resident-data"]
        return (EndReason.CRASHED, "as scripted") if stacked else None

    done = go_on(begun(tmp_path, *FOUND[:2]), ScriptedRunner(GAINS, endings=endings), tmp_path)
    why = {verdict.trial: verdict.why for verdict in done.tuning.verdicts}

    assert why["stacked-2-profiler-marks"] == "the optimisations kept so far failed here, crashed: as scripted"
    assert names(done.tuning.kept) == ["resident-data"]


def test_a_candidate_without_effect_costs_one_pair_of_processes(tmp_path):
    def outcomes(choices):
        return tuple(Outcome(name=choice.name, code="", status="refused", why="a stream") for choice in choices)

    runner = ScriptedRunner(GAINS, outcomes=outcomes)
    done = go_on(begun(tmp_path, FOUND[0]), runner, tmp_path)

    assert done.tuning.verdicts[1].why == "refused: a stream"
    assert len(runner.ran) == 6 + 2


def test_more_processes_run_while_a_trial_is_undecided(tmp_path):
    runner = ScriptedRunner(gains(gc_pauses=1.022), between_processes=0.0, between_blocks=0.0)
    done = go_on(begun(tmp_path, candidate("gc-pauses")), runner, tmp_path)

    assert len(done.tuning.trials[1].samples) == 10
    assert names(done.tuning.kept) == ["gc-pauses"]


def test_gives_up_when_too_many_processes_would_be_needed(tmp_path):
    def judging(trial, noise, request, earlier):
        verdict = one_rule_judge(trial, noise, request)
        return replace(verdict, decision="inconclusive", speed=replace(verdict.speed, more_as_measured=40))

    runner = ScriptedRunner(GAINS)
    done = go_on(begun(tmp_path, FOUND[0]), runner, tmp_path, judging=judging)

    assert done.tuning.verdicts[1].decision == "inconclusive"
    assert len(done.tuning.trials[1].samples) == 4


def test_only_the_fastest_of_several_values_is_tried_fully(tmp_path):
    found = [candidate("loader-workers", value) for value in ("1", "2", "4")]
    speeds = gains(loader_workers_1=1.2, loader_workers_2=1.6, loader_workers_4=1.4)
    done = go_on(begun(tmp_path, *found), ScriptedRunner(speeds), tmp_path)

    assert done.tuning.kept == (Choice(name="loader-workers", value="2", asked=True),)
    assert [len(trial.samples) for trial in done.tuning.trials[1:4]] == [2, 4, 2]
    why = {verdict.value: verdict.why for verdict in done.tuning.verdicts}
    assert why["1"] == "loader-workers=2 was faster when each value was tried once"


def test_reports_values_left_out_after_two_slow_ones(tmp_path):
    modes = [candidate("compile", mode) for mode in ("default", "reduce-overhead", "max-autotune")]
    slow = {"compile_default": 0.8, "compile_reduce-overhead": 0.7}
    runner = ScriptedRunner(gains(**slow))
    done = go_on(begun(tmp_path, *modes), runner, tmp_path)

    assert ("compile=max-autotune", "two other values were slower when each was tried once") in done.tuning.not_tried
    assert not any(choice.value == "max-autotune" for spec in runner.ran for choice in spec.choices)


def test_a_small_budget_gives_shorter_processes_that_are_still_long_enough():
    seen = observation()
    step = seen.mean_step_ms / 1000
    small, usual = (length(seen, begun_asked(seen, budget=budget, steps=None), 9.0) for budget in (120.0, 3600.0))

    assert 25 <= small.steps < usual.steps
    assert small.steps * step >= 2.0 or small.steps == 25
    assert small.process_seconds > small.steps * step, "with its start"


def test_a_stacked_trial_on_a_fast_base_measures_more_steps(tmp_path):
    runner = ScriptedRunner(GAINS, own_length=lambda spec: 10_000)
    go_on(begun(tmp_path, *FOUND[:2], steps=None, budget=300.0), runner, tmp_path)
    steps = {len(spec.choices): spec.steps for spec in runner.ran[:-3] if spec.arm == "new" and spec.choices}
    both = [spec for spec in runner.ran if names(spec.choices) == ["resident-data", "profiler-marks"]]
    stacked = {spec.steps for spec in both[:-1]}

    assert max(stacked) == pytest.approx(2 * steps[1], rel=0.05), "what is kept is twice as fast"
    assert min(stacked) == steps[1], "against the baseline as many as always"
    assert both[-1].steps == 3 * steps[1], "and far more in the last stage, where an epoch is short"


def test_a_longer_trial_never_exceeds_the_length_of_the_run():
    seen = observation()
    usual = length(seen, begun_asked(seen, steps=None), 9.0)
    assert usual.longer(100, 3.0) == 300
    assert usual.longer(100, 0.5) == 100
    assert usual.longer(100, 50.0) == 800
    assert usual.longer(1500, 3.0) == 2000
    assert replace(usual, own=250).longer(100, 3.0) == 250
    assert replace(usual, own=90).longer(100, 3.0) == 100


def test_the_budget_ends_the_trials_but_not_the_proof(tmp_path):
    runner = ScriptedRunner(GAINS)
    done = go_on(begun(tmp_path, *FOUND, budget=55.0), runner, tmp_path)

    assert done.tuning.seconds <= 55.0
    assert [entry for entry, why in done.tuning.not_tried if why.startswith("no budget left")] == [
        "profiler-marks",
        "fused-optimizer",
        "gc-pauses",
    ]
    assert names(done.tuning.kept) == ["resident-data"]


def test_a_short_budget_tries_the_rest_together_on_top_of_the_best(tmp_path):
    done = go_on(begun(tmp_path, *FOUND, budget=70.0 + LAST), ScriptedRunner(GAINS), tmp_path)

    together = "stacked-2-profiler-marks+fused-optimizer+gc-pauses"
    assert trial_names(done.tuning)[1:5] == ["alone-resident-data", together, "final-4", "lasting-4"]
    assert names(done.tuning.kept) == ["resident-data", "profiler-marks", "fused-optimizer", "gc-pauses"]
    assert done.tuning.speedup.speed.ratio == pytest.approx(2.0 * 1.4 * 1.3, rel=0.02)
    rows = {row.name: row for row in tune_rows.rows(done.tuning)}
    assert rows["gc-pauses"].why.startswith("together with fused-optimizer, profiler-marks: ")
    assert verdict_line(done.tuning.verdicts[2]).startswith(
        "hotlap: kept: profiler-marks + fused-optimizer + gc-pauses, "
    )


def test_candidates_that_fail_together_are_tried_by_halves(tmp_path):
    """One of three candidates does harm: the half without it is kept."""

    def losses(choices, seed_shift, steps):
        good = falling_losses(choices, seed_shift, steps)
        return tuple(loss * 1.5 for loss in good) if "gc-pauses" in names(choices) else good

    runner = ScriptedRunner(GAINS, losses=losses)
    done = go_on(begun(tmp_path, *FOUND, budget=85.0 + LAST), runner, tmp_path)

    assert names(done.tuning.kept) == ["resident-data", "profiler-marks", "fused-optimizer"]
    assert "stacked-2-profiler-marks+fused-optimizer" in trial_names(done.tuning)
    rows = {row.name: row for row in tune_rows.rows(done.tuning)}
    assert rows["gc-pauses"].state != "kept"


def test_a_candidate_without_effect_in_a_group_is_not_in_the_plan(tmp_path):
    def outcomes(choices):
        status = {"gc-pauses": ("no effect", "nothing is collected")}
        pairs = [(choice.name, *status.get(choice.name, ("applied", ""))) for choice in choices]
        return tuple(Outcome(name=name, code="", status=status, why=why) for name, status, why in pairs)

    runner = ScriptedRunner(GAINS, outcomes=outcomes)
    done = go_on(begun(tmp_path, *FOUND, budget=70.0 + LAST), runner, tmp_path)

    assert names(done.tuning.kept) == ["resident-data", "profiler-marks", "fused-optimizer"]
    assert ("gc-pauses", "no effect: nothing is collected") in done.tuning.not_tried


def test_small_gains_that_do_not_show_alone_are_proven_together(tmp_path):
    found = [candidate("resident-data"), candidate("profiler-marks", most=0.4), candidate("fused-optimizer", most=0.3)]
    runner = ScriptedRunner(gains(resident_data=1.04, profiler_marks=1.04, fused_optimizer=1.04), between_processes=0.0)
    done = go_on(begun(tmp_path, *found, minimum=1.08), runner, tmp_path)

    assert names(done.tuning.kept) == ["resident-data", "profiler-marks", "fused-optimizer"]
    assert done.tuning.speedup.trial == "final-3"
    assert done.tuning.speedup.speed.ratio == pytest.approx(1.04**3, rel=0.01)


SMALL = [candidate(name, most=0.1) for name in ("resident-data", "profiler-marks", "fused-optimizer", "gc-pauses")]


@pytest.mark.parametrize(("budget", "looks"), [(52.0 + LAST, 0), (58.0 + LAST, 1)])
def test_a_short_budget_keeps_time_to_try_all_together(budget, looks, tmp_path):
    """Each candidate gains 4 %, and there is no time for the processes that would show it."""
    factors = dict.fromkeys(("resident_data", "profiler_marks", "fused_optimizer", "gc_pauses"), 1.04)
    runner = ScriptedRunner(gains(**factors), between_processes=0.0)
    done = go_on(begun(tmp_path, *SMALL, minimum=1.08, budget=budget), runner, tmp_path)

    assert len([name for name in trial_names(done.tuning) if name.startswith("alone")]) == looks
    assert len(done.tuning.kept) == 4
    assert done.tuning.speedup.trial == "final-4"
    assert done.tuning.seconds <= budget


def test_only_entries_that_a_plan_has_by_default_are_tried_together(tmp_path):
    """Compilation takes minutes, so it is tried on its own or not at all."""
    found = [*FOUND[:3], candidate("compile", "default", most=0.25)]
    done = go_on(begun(tmp_path, *found, budget=70.0 + LAST), ScriptedRunner(GAINS), tmp_path)

    assert names(done.tuning.kept) == ["resident-data", "profiler-marks", "fused-optimizer"]
    assert any(entry == "compile" and why.startswith("no budget left") for entry, why in done.tuning.not_tried)


def test_the_others_are_tried_alone_when_the_most_promising_fails(tmp_path):
    def losses(choices, seed_shift, steps):
        good = falling_losses(choices, seed_shift, steps)
        return tuple(loss * 1.5 for loss in good) if "resident-data" in names(choices) else good

    runner = ScriptedRunner(GAINS, losses=losses)
    done = go_on(begun(tmp_path, *FOUND[:2], budget=60.0 + LAST), runner, tmp_path)

    assert trial_names(done.tuning)[1:3] == ["alone-resident-data", "alone-profiler-marks"]
    assert names(done.tuning.kept) == ["profiler-marks"]


def test_an_entry_kept_without_a_trial_of_its_own_gets_one_if_time_is_left(tmp_path):
    done = go_on(begun(tmp_path, *FOUND, budget=100.0 + LAST), ScriptedRunner(GAINS), tmp_path)
    trials = trial_names(done.tuning)

    assert names(done.tuning.kept) == ["resident-data", "profiler-marks", "fused-optimizer"]
    assert trials[trials.index("lasting-3") + 1 :] == ["alone-profiler-marks"]
    assert done.tuning.speedup.trial == "final-3"


def test_one_process_may_not_take_the_whole_budget(tmp_path):
    runner = ScriptedRunner(GAINS)
    go_on(begun(tmp_path, *FOUND, budget=200.0), runner, tmp_path)
    later = [spec.seconds for spec in runner.ran[6:]]

    assert max(later) <= 50.0
    assert min(later) >= 3 * 3.0, "but always three times what the baseline takes"


class Killed(BaseException):
    """Stands for a killed process: no handler of ordinary errors catches it."""


def killed_at(moment: int, runner: ScriptedRunner):
    run, left = runner.run, [moment]

    def until_then(spec):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return run(spec)

    runner.run = until_then
    return runner


def test_a_tune_killed_at_a_random_moment_and_resumed_ends_with_the_same_plan(tmp_path):
    found = [*FOUND, *(candidate("loader-workers", value, most=0.1) for value in ("1", "2"))]
    speeds = gains(
        resident_data=2.0, profiler_marks=1.4, fused_optimizer=1.3, gc_pauses=1.021, loader_workers_1=1.1,
        loader_workers_2=1.2,
    )  # fmt: skip
    expected = go_on(begun(tmp_path / "whole", *found), ScriptedRunner(speeds), tmp_path / "whole").tuning
    processes = sum(len(trial.samples) for trial in expected.trials)
    chance = random.Random(5)
    for moment in [chance.randrange(processes) for _ in range(20)]:
        folder = tmp_path / str(chance.random())
        run = begun(folder, *found)
        with pytest.raises(Killed):
            go_on(run, killed_at(moment, ScriptedRunner(speeds)), folder)
        rest = ScriptedRunner(speeds)
        done = go_on(run, rest, folder).tuning

        assert replace(done, run=expected.run) == expected
        assert len(rest.ran) == processes - moment, "only what was in flight is run again"


def test_a_tune_killed_while_saving_loses_at_most_one_process(tmp_path, on_disk, monkeypatch):
    run = begun(tmp_path, *FOUND)
    save, left = type(run).save, [7]

    def torn(self, name, record):
        left[0] -= 1
        if left[0] < 0:
            (self.folder / f"{name}.tmp").write_text('{"schema": 1, "ru')
            raise Killed
        return save(self, name, record)

    monkeypatch.setattr(type(run), "save", torn)
    with pytest.raises(Killed):
        go_on(run, ScriptedRunner(GAINS), tmp_path)
    monkeypatch.undo()
    before = sum(len(trial.samples) for trial in run.load("tuning", TuneRecord).trials)
    rest = ScriptedRunner(GAINS)
    done = go_on(run, rest, tmp_path)

    assert names(done.tuning.kept) == ["resident-data", "profiler-marks", "fused-optimizer"]
    assert before + len(rest.ran) == sum(len(trial.samples) for trial in done.tuning.trials)


def test_the_plan_of_a_tune_from_a_repository_is_not_applied_automatically(tmp_path, on_disk):
    run = begun(tmp_path, *FOUND)
    (run.folder / signature.MARK).unlink()
    lines = []

    class Recorder(Watcher):
        def caution(self, line):
            lines.append(line)

    done = go_on(run, ScriptedRunner(GAINS), tmp_path, Recorder())
    assert not read(done.plan, store.root())[1]
    assert lines == [
        f"{run.folder} was not started by your own hotlap tune; so hotlap run does not apply the plan automatically; "
        f"name it: --plan {done.plan}"
    ]


def test_ctrl_c_keeps_the_proven_entries_and_says_how_to_resume(tmp_path, on_disk):
    run = begun(tmp_path, *FOUND)
    runner = ScriptedRunner(GAINS)
    measured = runner.run

    def interrupted(spec):
        if spec.number == 16:
            raise KeyboardInterrupt
        return measured(spec)

    runner.run = interrupted
    with pytest.raises(HotlapError, match=f"hotlap tune --resume {run.id}") as error:
        go_on(run, runner, tmp_path)

    assert error.value.exit_code == 130
    assert "kept so far: resident-data" in str(error.value)
    assert names(read(saved_plan.place(tmp_path, COMMAND), store.root())[0].choices) == ["resident-data"]


# Bad input: one line that says what to do


def test_rejects_a_command_that_cannot_run_twice(tmp_path):
    def endings(spec):
        return (EndReason.CRASHED, "OSError: [Errno 98] Address already in use") if spec.number == 1 else None

    run = begun(tmp_path, *FOUND)
    with pytest.raises(CannotRunTwice, match=r"Address already in use.*--resume"):
        go_on(run, ScriptedRunner(GAINS, endings=endings), tmp_path)
    done = go_on(run, ScriptedRunner(GAINS), tmp_path)

    assert names(done.tuning.kept) == ["resident-data", "profiler-marks", "fused-optimizer"]


def test_rejects_a_command_that_varies_in_length(tmp_path):
    runner = ScriptedRunner(GAINS, own_length=lambda spec: 30 + spec.number)
    with pytest.raises(TooShort, match=r"a different number of steps each time \(30, 31\).*--steps 29"):
        go_on(begun(tmp_path, *FOUND), runner, tmp_path)


def test_rejects_a_command_that_is_too_short(tmp_path):
    with pytest.raises(TooShort, match="after 10 steps; 25 are needed"):
        go_on(begun(tmp_path, *FOUND), ScriptedRunner(GAINS, own_length=lambda spec: 10), tmp_path)


def test_rejects_a_run_that_ends_early_before_any_trial():
    seen = replace(observation(), ended="program ended", steps=8)
    request = begun_asked(seen)
    with pytest.raises(TooShort, match=r"ends by itself after .* steps, but 25 are needed"):
        length(seen, request)


def test_too_few_steps_on_request_are_not_blamed_on_the_program():
    seen = replace(observation(), ended="program ended", steps=200)
    with pytest.raises(TooShort, match=r"^20 steps are too few to measure; give at least --steps 25$"):
        length(seen, begun_asked(seen, steps=20))


def begun_asked(seen, **more):
    from tunes import record

    return record("run", **more).asked


def test_rejects_a_budget_that_is_too_small(tmp_path, on_disk):
    with pytest.raises(BudgetTooSmall, match="--budget"):
        length(observation(), begun_asked(observation(), budget=5.0))
    run = begun(tmp_path, *FOUND, budget=300.0)
    with pytest.raises(BudgetTooSmall, match=r"one process took 90 s.*--budget"):
        go_on(run, ScriptedRunner(GAINS, startup_seconds=90.0), tmp_path)
    with pytest.raises(RunNotFound, match="there is no unfinished tune"):  # it would end alike
        unfinished(COMMAND, tmp_path)


def test_rejects_a_metric_that_is_never_reported(tmp_path):
    metric = Metric(name="acc", pattern="acc: ([0-9.]+)", tag=None, higher_is_better=True, margin=None)
    with pytest.raises(MetricNeverSeen, match=r"in 40 steps matches --metric 'acc: \(\[0-9.\]\+\)'"):
        go_on(begun(tmp_path, *FOUND, metric=metric), ScriptedRunner(GAINS), tmp_path)


def test_the_wait_for_a_rare_metric_leaves_most_of_the_budget_and_ends_with_what_to_do(tmp_path):
    metric = Metric(name="acc", pattern="acc: ([0-9.]+)", tag=None, higher_is_better=True, margin=None)
    runner = ScriptedRunner(GAINS, endings=lambda spec: (EndReason.OVER_TIME, "15 s passed, at step 320 of 64"))
    with pytest.raises(MetricNeverSeen, match=r"matches --metric 'acc: .*or a larger --budget"):
        go_on(begun(tmp_path, *FOUND, metric=metric, steps=None, budget=60.0), runner, tmp_path)
    assert runner.ran[0].seconds <= 60.0 / 2


def test_the_first_process_waits_for_the_metric_and_the_others_train_as_far(tmp_path):
    metric = Metric(name="acc", pattern="acc: ([0-9.]+)", tag=None, higher_is_better=True, margin=None)
    runner = ScriptedRunner(GAINS, readings=lambda spec: (MetricValue(name="acc", step=700, value=0.9),))
    go_on(begun(tmp_path, FOUND[0], metric=metric, steps=None), runner, tmp_path)

    assert runner.ran[0].readings == 1
    assert {spec.readings for spec in runner.ran[1:]} == {0}
    assert all(spec.steps > 700 for spec in runner.ran[1:])


def test_rejects_a_baseline_whose_loss_is_not_finite(tmp_path):
    def endings(spec):
        return EndReason.NOT_A_NUMBER, "the loss of step 3 is not finite"

    with pytest.raises(BaselineUnusable, match="step 3 is not finite even without any optimisation"):
        go_on(begun(tmp_path, *FOUND), ScriptedRunner(GAINS, endings=endings), tmp_path)


def test_a_baseline_that_fails_once_is_run_again(tmp_path):
    failed = []

    def endings(spec):
        if spec.number == 6 and not failed:
            failed.append(spec)
            return EndReason.CRASHED, "a hiccup"
        return None

    done = go_on(begun(tmp_path, *FOUND), ScriptedRunner(GAINS, endings=endings), tmp_path)

    assert failed
    assert names(done.tuning.kept) == ["resident-data", "profiler-marks", "fused-optimizer"]


def test_every_process_is_saved_as_soon_as_it_ends(tmp_path, on_disk):
    run = begun(tmp_path, *FOUND)
    seen = []
    runner = ScriptedRunner(GAINS)
    measured = runner.run

    def counted(spec):
        record = json.loads((run.folder / "tuning.json").read_text())
        seen.append(sum(len(trial["samples"]) for trial in record["trials"]) == spec.number)
        return measured(spec)

    runner.run = counted
    go_on(run, runner, tmp_path)

    assert all(seen)


def test_a_full_disk_loses_nothing_and_is_reported(tmp_path, on_disk, monkeypatch):
    run = begun(tmp_path, *FOUND)
    save, left = store.Run.save, [9]

    def full(self, name, record):
        left[0] -= 1
        if left[0] == 0:
            raise RunFolderUnwritable("cannot write (No space left on device)")
        return save(self, name, record)

    monkeypatch.setattr(store.Run, "save", full)
    with pytest.raises(RunFolderUnwritable, match=rf"nothing is lost: hotlap tune --resume {run.id}"):
        go_on(run, ScriptedRunner(GAINS), tmp_path)
    rest = ScriptedRunner(GAINS)

    assert names(go_on(run, rest, tmp_path).tuning.kept) == ["resident-data", "profiler-marks", "fused-optimizer"]
    assert rest.ran[0].number > 4
