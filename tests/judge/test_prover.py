"""The prover on real noise and on training that is really harmed: a fast part of benchmarks/prover."""

from __future__ import annotations

import json

import prover
import prover_changes as changes
import pytest
import torch
from once import shared_folder
from prover_harm import Case, judged
from prover_tasks import Task, battery_fnn, with_weight_decay
from scipy import stats

from hotlap.records.plan import Risk

STEPS = 120


@pytest.fixture(autouse=True)
def quick(constants):
    constants("hotlap.judge.ratio", RESAMPLES=999)


def rarer_than_one_in_twenty(share: float, of: int) -> bool:
    """Whether the share is compatible with 5 %; only the committed result has enough tunes to show it directly."""
    return stats.binomtest(round(share * of), of, 0.05, alternative="greater").pvalue > 0.01


def test_identical_arms_are_hardly_ever_called_faster():
    busy, calm = prover.processes_of(prover.BUSY), prover.processes_of(prover.CALM)
    for found in (prover.alike(busy, prover.in_order, 8), prover.alike(calm, prover.at_random, 8)):
        assert rarer_than_one_in_twenty(found["share_of_trials_called_faster"], found["trials_alone"])
        assert rarer_than_one_in_twenty(found["share_of_tunes_that_end_faster"], found["tunes"])


def test_the_committed_result_keeps_a_false_speed_up_in_at_most_one_tune_of_twenty():
    """Single trials may exceed it slightly, because they are judged after each pair and proven again afterwards."""
    result = json.loads(prover.BUSY.with_name("2026-11-16-prover.json").read_text(encoding="utf-8"))
    for found in result["alike"].values():
        assert found["tunes"] >= 200
        assert found["share_of_tunes_that_end_faster"] <= 0.05
        assert found["share_of_trials_called_faster"] <= 0.06


def test_a_planted_speed_up_is_found_as_often_as_promised():
    found = prover.planted(prover.processes_of(prover.CALM), 1.05, 4, 60)
    assert found["found"] == pytest.approx(found["promised_mean"], abs=0.2)
    assert 0.4 < found["found"] < 0.95


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOTLAP_DATA", str(shared_folder(tmp_path_factory) / "workload-data"))
        return battery_fnn()


@pytest.mark.parametrize(
    "change",
    [
        changes.DroppedGradients,
        changes.RateLostInRebuild,
        changes.BrokenShuffling,
        changes.StaleBatch,
        changes.WrongLossScale,
        changes.LabelsCast,
        changes.OptimizerStateReset,
    ],
)
def test_a_harmful_change_that_pretends_to_be_rounding_is_rejected(task, change):
    found, _ = judged(Case("", change, task), seeds=(0,), steps=STEPS)
    assert found.passed is False, found.why


def test_a_lost_weight_decay_is_rejected(task):
    decayed = with_weight_decay(task, 0.1)
    assert judged(Case("", changes.WeightDecayLost, decayed), seeds=(0,), steps=STEPS)[0].passed is False


def test_half_precision_without_scaling_is_rejected(task):
    case = Case("", changes.HalfWithoutScaling, task, Risk.NUMERIC)
    assert judged(case, seeds=(0, 1, 2), steps=STEPS)[0].passed is False


@pytest.mark.parametrize(
    "change", [changes.FusedOptimizer, changes.ForeachOptimizer, changes.OtherSummationOrder, changes.BatchInTwoHalves]
)
def test_a_change_that_only_rounds_differently_passes(task, change):
    found, _ = judged(Case("", change, task), seeds=(0, 1), steps=STEPS)
    assert found.passed, found.why
