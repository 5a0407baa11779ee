"""A verdict keeps, rejects or is inconclusive, and its sentence says why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prover_records import asked, noise_trial, sample, trial

from hotlap.judge.verdict import judge, pays_off
from hotlap.records.codec import from_json, to_json
from hotlap.records.plan import Outcome, Risk, Status
from hotlap.records.trial import EndReason
from hotlap.records.verdict import Decision, Verdict

LOSSES = [1.0 / (1 + step) for step in range(40)]
STEADY = [1.0, 1.01, 0.99]
NOISE = noise_trial([sample(losses=LOSSES, seconds=STEADY)] * 2, [sample(losses=LOSSES, seconds=STEADY)] * 2)


def arms(faster: float, losses: list[float] = LOSSES, risk: Risk = Risk.EXACT):
    base = [
        sample(losses=LOSSES, seconds=[duration * (1 + 0.001 * number) for duration in STEADY]) for number in range(2)
    ]
    new = [
        sample("new", losses, [duration / faster * (1 + 0.001 * number) for duration in STEADY]) for number in range(2)
    ]
    return trial([*base, *new], risk)


def test_a_faster_and_harmless_entry_is_kept():
    found = judge(arms(1.5), NOISE, asked())
    assert found.decision == Decision.KEEP
    assert "1.500 × as fast" in found.why
    assert "bit" in found.why
    assert from_json(Verdict, to_json(found), "verdict") == found


def test_a_faster_entry_with_other_losses_is_rejected():
    found = judge(arms(1.5, [loss + 1e-9 for loss in LOSSES]), NOISE, asked())
    assert found.decision == Decision.REJECT
    assert "the loss of step 0" in found.why
    assert "bit-equal" in found.gate.rule


def test_a_faster_entry_of_unknown_harm_is_inconclusive_and_says_what_is_missing():
    found = judge(arms(1.5, risk=Risk.NUMERIC), NOISE, asked())
    assert found.decision == Decision.INCONCLUSIVE
    assert found.gate.more == 2
    assert "needs 2 more" in found.why


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.005])
def test_a_gain_below_the_minimum_is_rejected(ratio):
    assert judge(arms(ratio), NOISE, asked()).decision == Decision.REJECT


def test_a_gain_hidden_by_noise_is_inconclusive_and_says_how_many_processes_are_needed():
    loud = noise_trial(
        [sample(losses=LOSSES, seconds=[duration]) for duration in (1.0, 1.3)],
        [sample(losses=LOSSES, seconds=[duration]) for duration in (0.8, 1.2)],
    )
    found = judge(arms(1.1), loud, asked())
    assert found.decision == Decision.INCONCLUSIVE
    assert found.speed.more > 0
    assert "more processes on each side" in found.why


@pytest.mark.parametrize("ended", [reason for reason in EndReason if reason is not EndReason.MEASURED])
def test_a_broken_process_of_the_new_arm_rejects(ended):
    both = arms(1.5)
    broken = replace(both.samples[-1], ended=ended, why="the last line", losses=())
    found = judge(replace(both, samples=(*both.samples[:-1], broken)), NOISE, asked())
    assert found.decision == Decision.REJECT
    assert ended in found.why
    assert "the last line" in found.why


def test_a_broken_baseline_is_inconclusive():
    both = arms(1.5)
    broken = replace(both.samples[0], ended=EndReason.CRASHED)
    found = judge(replace(both, samples=(broken, *both.samples[1:])), NOISE, asked())
    assert found.decision == Decision.INCONCLUSIVE
    assert "baseline" in found.why


def test_an_entry_without_effect_is_rejected_with_its_own_reason():
    outcome = Outcome(name="planted", code="H000", status=Status.NO_EFFECT, why="there is no loader here")
    both = arms(1.5)
    samples = tuple(replace(sample, outcomes=(outcome,)) if sample.arm == "new" else sample for sample in both.samples)
    found = judge(replace(both, samples=samples), NOISE, asked())
    assert found.decision == Decision.REJECT
    assert "there is no loader here" in found.why


def test_more_risk_than_requested_is_rejected_and_named():
    found = judge(arms(1.5, risk=Risk.NUMERIC), NOISE, asked(Risk.ROUNDING))
    assert found.decision == Decision.REJECT
    assert "--risk numeric" in found.why


def test_the_baseline_against_itself_keeps_nothing_and_gives_the_noise():
    found = judge(NOISE, None, asked())
    assert found.decision == Decision.REJECT
    assert "against itself" in found.why
    assert found.speed.noise_high is not None
    assert not found.speed.faster


def test_a_longer_start_pays_off_after_some_steps():
    both = arms(2.0)
    samples = tuple(replace(sample, warmup_seconds=11.0) if sample.arm == "new" else sample for sample in both.samples)
    found = pays_off(replace(both, samples=samples))
    assert found.extra_seconds == pytest.approx(11.0, abs=0.1), "10 s of warm-up and 1 s that its steps would now save"
    assert found.steps == pytest.approx(23, abs=1)
    assert found.seconds == pytest.approx(23, abs=1)


def test_a_longer_start_of_a_slower_arm_never_pays_off():
    both = arms(0.9)
    samples = tuple(replace(sample, warmup_seconds=11.0) if sample.arm == "new" else sample for sample in both.samples)
    assert pays_off(replace(both, samples=samples)).steps is None


def test_an_equal_start_pays_off_at_once():
    assert pays_off(arms(1.0)).steps == 0
