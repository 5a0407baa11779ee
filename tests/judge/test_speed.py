"""When one arm is called faster than the other, and when the sample is too small to say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from prover_records import noise_trial, sample, trial

from hotlap.judge.power import Spread, chance, processes_needed, smallest, spread_of
from hotlap.judge.speed import speed
from hotlap.records.trial import EndReason


def arm(name: str, *means: float, wobble: float = 0.01) -> list:
    """One process per mean, whose blocks differ slightly."""
    pattern = (1 - wobble, 1 + wobble, 1.0, 1 + wobble / 2, 1 - wobble / 2)
    return [sample(name, seconds=[mean * factor for factor in pattern]) for mean in means]


QUIET = noise_trial(arm("base", 1.000, 1.004), arm("base", 0.998, 1.002))
LOUD = noise_trial(arm("base", 1.0, 1.3), arm("base", 0.8, 1.1))


def test_a_clear_speed_up_is_faster_with_two_processes_per_arm():
    found = speed(trial([*arm("base", 1.0, 1.003), *arm("new", 0.8, 0.802)]), QUIET, 1.02)
    assert found.faster
    assert not found.slower
    assert found.ratio == pytest.approx(1.25, rel=0.01)
    assert found.low < found.ratio < found.high
    assert found.noise_low < 1 < found.noise_high < 1.02
    assert found.resampled == "blocks"


def test_a_ratio_within_the_noise_of_the_baseline_is_not_faster():
    found = speed(trial([*arm("base", 1.0, 1.3), *arm("new", 0.9, 0.93)]), LOUD, 1.02)
    assert not found.faster
    assert found.noise_high > found.ratio
    assert found.more > 0
    assert 0 < found.more_as_measured < found.more, (
        "a larger effect needs fewer processes than the smallest that counts"
    )


def test_two_processes_do_not_pretend_to_know_their_spread():
    """Blocks alone would give a narrow interval; it is at least as wide as the noise band."""
    found = speed(trial([*arm("base", 1.0, 1.0), *arm("new", 0.9, 0.9)]), LOUD, 1.02)
    assert found.high / found.low >= found.noise_high / found.noise_low * 0.999


def test_a_difference_below_the_minimum_effect_is_not_faster_however_certain():
    base, new = arm("base", 1.0, 1.0001, 0.9999, wobble=0), arm("new", 0.99, 0.9901, 0.9899, wobble=0)
    quiet = noise_trial(arm("base", 1.0, 1.0001), arm("base", 0.9999, 1.0))
    found = speed(trial([*base, *new]), quiet, 1.02)
    assert found.low > 1
    assert not found.faster
    assert found.more == 0
    assert speed(trial([*base, *new]), quiet, 1.005).faster


def test_slower_mirrors_faster():
    found = speed(trial([*arm("base", 0.8, 0.802), *arm("new", 1.0, 1.003)]), QUIET, 1.02)
    assert found.slower
    assert not found.faster


def test_without_a_noise_band_nothing_is_faster():
    found = speed(trial([*arm("base", 1.0), *arm("new", 0.5)]), None, 1.02)
    assert (found.faster, found.noise_low, found.smallest) == (False, None, None)
    assert found.more > 0


def test_three_processes_per_arm_set_a_band_without_a_noise_trial():
    found = speed(trial([*arm("base", 1.0, 1.01, 0.99), *arm("new", 0.5, 0.51, 0.49)]), None, 1.02)
    assert found.faster
    assert found.resampled == "processes"


def test_broken_processes_do_not_count():
    broken = replace(sample("new", seconds=[0.1]), ended=EndReason.CRASHED)
    both = [*arm("base", 1.0, 1.0), *arm("new", 1.0, 1.0)]
    assert speed(trial([*both, broken]), QUIET, 1.02) == speed(trial(both), QUIET, 1.02)
    assert speed(trial([*arm("base", 1.0), broken]), QUIET, 1.02) is None


def test_arms_without_any_noise_are_distinguished():
    same = noise_trial(arm("base", 1.0, 1.0, wobble=0), arm("base", 1.0, 1.0, wobble=0))
    found = speed(trial([*arm("base", 1.0, 1.0, wobble=0), *arm("new", 0.5, 0.5, wobble=0)]), same, 1.02)
    assert found.faster
    assert (found.ratio, found.more) == (2.0, 0)


def test_a_new_arm_that_varies_more_than_the_baseline_widens_the_band():
    steady = speed(trial([*arm("base", 1.0, 1.0), *arm("new", 0.8, 0.8)]), QUIET, 1.02)
    stray = speed(trial([*arm("base", 1.0, 1.0), *arm("new", 0.5, 1.1)]), QUIET, 1.02)
    assert stray.noise_high > 1.5 * steady.noise_high
    assert not stray.faster


def test_spread_is_pooled_around_the_mean_of_each_group():
    found = spread_of([[0.0, 0.2], [5.0, 5.2], [9.0]])
    assert found.freedom == 2
    assert found.deviation == pytest.approx(0.02**0.5)
    assert spread_of([[1.0], []]) is None


def test_the_power_is_as_promised():
    """Applied to new normal draws, the rule finds the effect as often as promised."""
    random = np.random.default_rng(11)

    def logs(count: int, shift: float = 0.0) -> list[float]:
        return list(np.exp(random.normal(-shift, 0.03, count)))

    found = 0
    for _ in range(100):
        noise = noise_trial(arm("base", *logs(4), wobble=0.001), arm("base", *logs(4), wobble=0.001))
        both = trial([*arm("base", *logs(4), wobble=0.001), *arm("new", *logs(4, np.log(1.08)), wobble=0.001)])
        found += speed(both, noise, 1.02).faster
    promised = chance(Spread(deviation=0.03, freedom=7), 4, 1.08, 1.02)
    assert 0.5 < promised < 0.95
    assert found / 100 == pytest.approx(promised, abs=0.13)


def test_more_processes_show_smaller_effects():
    spread = Spread(deviation=0.03, freedom=5)
    assert smallest(spread, 3) > smallest(spread, 6) > smallest(spread, 24) > 1
    needed = processes_needed(spread, 1.05)
    assert smallest(spread, needed) <= 1.05 < smallest(spread, needed - 1)
    assert chance(spread, needed, 1.05, 1.02) == pytest.approx(0.8, abs=0.06)
    assert chance(spread, 4, 1.0, 1.02) < 0.04, "alike arms"
