"""What passes a gate, what fails it, and what is not evidence. Losses are invented; test_prover.py trains."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from prover_records import noise_trial, sample, trial

from hotlap.judge.gates import gate
from hotlap.judge.rounding import NUDGE
from hotlap.records.plan import Choice, Risk
from hotlap.records.trial import MetricValue
from hotlap.records.tune_record import Metric

STEPS = 64
ACCURACY = Metric(name="accuracy", pattern=None, tag=None, higher_is_better=True, margin=0.01)


def falling(seed: int = 0, lower: float = 0.0, steps: int = STEPS) -> list[float]:
    random = np.random.default_rng(seed)
    return list((np.exp(-np.arange(steps) / 20) + 0.2 + random.normal(0, 0.02, steps)) * (1 - lower))


def drifting(losses: list[float], size: float, number: int = 1) -> list[float]:
    """The losses with a small difference that grows, as the effect of rounding does."""
    noise = np.random.default_rng(100 + number).normal(0, 1, len(losses))
    return list(np.array(losses) * (1 + size * noise * 1.15 ** np.arange(len(losses))))


def noise(size: float = 1e-6):
    base, nudged = falling(), (drifting(falling(), size, number) for number in (1, 2))
    return noise_trial([sample(losses=base)] * 2, [sample(losses=losses, nudge=NUDGE) for losses in nudged])


def one_seed(new: list[float], risk: Risk = Risk.ROUNDING):
    return trial([sample(losses=falling()), sample("new", losses=new)], risk)


def seeds(change, count: int, risk: Risk = Risk.NUMERIC):
    base = [sample(losses=falling(seed), seed=seed) for seed in range(count)]
    return trial([*base, *(sample("new", losses=change(seed), seed=seed) for seed in range(count))], risk)


def test_exact_passes_on_equal_bits_and_names_the_first_step_that_differs():
    assert gate(one_seed(falling(), Risk.EXACT), noise(), None).passed
    off = falling()
    off[17] = math.nextafter(off[17], 1)
    found = gate(one_seed(off, Risk.EXACT), noise(), None)
    assert found.passed is False
    assert "step 17" in found.why


def test_exact_sees_the_sign_of_zero():
    base, new = [*falling()[:-1], 0.0], [*falling()[:-1], -0.0]
    both = trial([sample(losses=base), sample(losses=base), sample("new", losses=new)], Risk.EXACT)
    assert gate(both, None, None).passed is False


def test_exact_compares_every_process_with_the_baseline_of_its_seed():
    both = [sample(losses=falling(seed), seed=seed) for seed in (0, 1)]
    both += [sample("new", losses=falling(0), seed=seed) for seed in (0, 1)]
    assert gate(trial(both, Risk.EXACT), noise(), None).passed is False


def test_unequal_bits_are_not_evidence_until_the_baseline_was_repeated():
    """Equal bits are evidence: two processes do not agree in every bit by chance."""
    off = [*falling()[:-1], 0.5]
    found = gate(one_seed(off, Risk.EXACT), None, None)
    assert (found.passed, found.more) == (None, 1)
    assert gate(one_seed(falling(), Risk.EXACT), None, None).passed


def test_exact_falls_back_on_rounding_where_the_baseline_does_not_repeat_itself():
    unsteady = noise_trial([sample(losses=falling())], [sample(losses=drifting(falling(), 1e-6, n)) for n in (1, 2)])
    good = gate(one_seed(drifting(falling(), 1e-6, 3), Risk.EXACT), unsteady, None)
    assert good.passed
    assert "does not repeat itself" in good.rule
    assert gate(one_seed(falling(lower=0.05), Risk.EXACT), unsteady, None).passed is False


def test_rounding_passes_an_arm_that_diverges_like_the_baseline_from_itself():
    assert gate(one_seed(drifting(falling(), 1e-6, 3)), noise(), None).passed
    assert gate(one_seed(falling()), noise(), None).passed


@pytest.mark.parametrize("lower", [0.01, -0.01, 0.2])
def test_rounding_rejects_a_loss_that_is_higher_or_lower(lower):
    found = gate(one_seed(falling(lower=lower)), noise(), None)
    assert found.passed is False
    assert "rounding explains" in found.why


def test_rounding_rejects_a_late_fault():
    late = falling()
    late[40:] = [loss * 1.1 for loss in late[40:]]
    found = gate(one_seed(late), noise(), None)
    assert found.passed is False
    assert dict(found.figures)["first step"] >= 28


def test_rounding_has_no_evidence_when_the_baseline_diverges_too_far_from_itself():
    found = gate(one_seed(drifting(falling(), 3e-4, 3)), noise(3e-4), None)
    assert found.passed is None
    assert found.more > 0


def test_identical_references_count_once():
    """Two runs with the same nudge are worth one, and one run allows a wider margin."""
    nudged = sample(losses=drifting(falling(), 1e-6, 1), nudge=NUDGE)
    twice = noise_trial([sample(losses=falling())], [nudged, nudged])
    assert "63.7 ×" in gate(one_seed(drifting(falling(), 1e-6, 3)), twice, None).rule


def test_rounding_without_a_nudged_baseline_is_judged_by_seeds():
    plain = noise_trial([sample(losses=falling())] * 2, [sample(losses=falling())] * 2)
    few = gate(one_seed(drifting(falling(), 1e-7, 3)), plain, None)
    assert (few.passed, few.more) == (None, 2)
    enough = gate(seeds(lambda seed: drifting(falling(seed), 1e-7, seed), 4, Risk.ROUNDING), plain, None)
    assert enough.passed
    assert "never run nudged" in enough.rule
    assert gate(seeds(lambda seed: falling(seed, 0.01), 4, Risk.ROUNDING), plain, None).passed is False


def test_numeric_passes_an_equivalent_loss_and_states_its_margin():
    found = gate(seeds(lambda seed: drifting(falling(seed), 1e-7, seed), 3), noise(), None)
    assert found.passed
    assert "margin" in found.rule
    assert dict(found.figures)["margin"] > 0


@pytest.mark.parametrize("lower", [0.3, -0.3])
def test_numeric_rejects_a_loss_beyond_the_margin_on_either_side(lower):
    assert gate(seeds(lambda seed: falling(seed, lower), 4), noise(), None).passed is False


def test_numeric_needs_three_seeds_and_says_how_many_more():
    assert gate(seeds(falling, 1), noise(), None).more == 2
    assert gate(seeds(falling, 2), noise(), None).passed is None


def test_numeric_requests_more_seeds_when_the_differences_vary():
    stray = {0: 0.03, 1: -0.03, 2: 0.02, 3: -0.02}
    found = gate(seeds(lambda seed: falling(seed, stray[seed]), 4), noise(), None)
    assert found.passed is None
    assert found.more > 0


def test_numeric_does_not_call_chance_a_harm():
    """Two seeds are alike and one is far off: the mean is beyond the margin, but that is not proven."""
    stray = {0: 0.0, 1: 0.0, 2: -0.9}
    found = gate(seeds(lambda seed: falling(seed, stray[seed]), 3), noise(), None)
    assert (found.passed, found.more) == (None, 3)


def with_metric(risk: Risk, worse: float, count: int = 4):
    """Accuracy is near 0.9 in both arms, and lower by `worse` in the new one."""
    both = seeds(falling, count, risk)
    samples = [
        replace(
            sample,
            readings=(
                MetricValue(name="accuracy", step=10, value=0.1),
                MetricValue(
                    name="accuracy", step=60, value=0.9 + 0.001 * sample.seed_shift - worse * (sample.arm == "new")
                ),
            ),
        )
        for sample in both.samples
    ]
    return replace(both, samples=tuple(samples))


@pytest.mark.parametrize(("worse", "passed"), [(0.0, True), (-0.2, True), (0.05, False)])
def test_the_metric_must_not_be_worse_by_more_than_its_margin(worse, passed):
    found = gate(with_metric(Risk.NUMERIC, worse), noise(), ACCURACY)
    assert found.passed is passed
    assert "accuracy non-inferior, margin 0.01" in found.rule


def test_a_metric_that_was_never_read_is_not_evidence():
    found = gate(seeds(falling, 4), noise(), ACCURACY)
    assert found.passed is None
    assert "accuracy" in found.why


def test_a_different_recipe_must_be_requested_and_needs_a_metric():
    both = with_metric(Risk.TRAINING, 0.0)
    assert gate(both, noise(), ACCURACY).passed is False
    requested = replace(both, new=(Choice(name="planted", asked=True),))
    assert gate(requested, noise(), None).passed is None
    found = gate(requested, noise(), ACCURACY)
    assert found.passed
    assert "p < 0.01" in found.rule


@pytest.mark.parametrize("risk", list(Risk))
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_fails_every_gate(risk, bad):
    new = falling()
    new[5] = bad
    assert gate(one_seed(new, risk), noise(), None).passed is False


@pytest.mark.parametrize("count", [0, STEPS - 1, STEPS + 1])
def test_a_different_number_of_losses_fails(count):
    found = gate(one_seed(falling(steps=STEPS + 1)[:count]), noise(), None)
    assert found.passed is False
    assert f"{count} losses" in found.why


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        ([], "no losses were seen"),
        (falling()[:8], "only 8 losses"),
        ([1.0] * STEPS, "never changes"),
        ([math.nan] * STEPS, "baseline's own loss"),
    ],
)
def test_an_uninformative_baseline_is_not_evidence(losses, why):
    new = losses if all(map(math.isfinite, losses)) else falling()
    both = trial([sample(losses=losses), sample(losses=losses), sample("new", losses=new)])
    found = gate(both, None, None)
    assert found.passed is None
    assert why in found.why


def test_the_noise_trial_also_applies_to_a_stacked_trial():
    """The baseline of the stack is a different program, but rounding grows in it as much."""
    both = one_seed(drifting(falling(), 1e-6, 3))
    earlier = (Choice(name="kept"),)
    samples = tuple(replace(sample, choices=earlier) if sample.arm == "base" else sample for sample in both.samples)
    stacked = replace(both, base=earlier, samples=samples)
    assert gate(stacked, noise(), None).passed
    assert gate(replace(stacked, risk=Risk.EXACT), noise(), None).passed is False


KEPT = (Choice(name="kept"),)


def kept_ran(losses):
    return replace(sample(losses=losses), choices=KEPT)


def test_exact_falls_back_on_rounding_for_a_stack_that_does_not_repeat_itself():
    """The bare baseline repeats itself but the kept entries do not, so different bits are no fault of the new entry."""
    drifted = [drifting(falling(), 1e-6, number) for number in (3, 4)]
    both = [kept_ran(falling()), sample("new", losses=drifted[0])]
    stacked = replace(trial(both, Risk.EXACT), base=KEPT)
    earlier = [kept_ran(drifted[1])]

    assert gate(stacked, noise(), None).passed is False
    found = gate(stacked, noise(), None, earlier)
    assert found.passed
    assert "does not repeat itself" in found.rule
    harmful = [both[0], sample("new", losses=falling(lower=0.05))]
    assert gate(replace(stacked, samples=tuple(harmful)), noise(), None, earlier).passed is False


def test_earlier_trials_show_that_a_stack_repeats_itself():
    off = [*falling()[:-1], 0.5]
    both = [kept_ran(falling()), sample("new", losses=off)]
    stacked = replace(trial(both, Risk.EXACT), base=KEPT)
    once = noise_trial([sample(losses=falling())], [sample(losses=drifting(falling(), 1e-6), nudge=NUDGE)])

    assert gate(stacked, once, None).passed is None
    assert gate(stacked, once, None, [kept_ran(falling())]).passed is False
