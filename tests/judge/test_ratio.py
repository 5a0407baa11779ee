"""The ratio of two arms and its interval, on simulated training runs whose true ratio is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hotlap.judge.ratio import EPOCHS, NOTHING, RUNS, Work, ratio, throughput

TRUE_RATIO = 3.0
SAMPLES = 1000.0


def runs_of(*runs: list[float]) -> list[list[Work]]:
    return [[Work(samples=SAMPLES, seconds=seconds) for seconds in run] for run in runs]


def simulated(random: np.random.Generator, speed: float, runs: int, epochs: int, between: float, within: float):
    """Simulated runs that differ from one another and whose epochs differ within the run."""
    return runs_of(
        *(list(np.exp(random.normal(0, between) + random.normal(0, within, epochs)) / speed) for _ in range(runs))
    )


def test_throughput_is_all_samples_over_all_seconds():
    assert throughput(runs_of([1.0, 3.0])) == pytest.approx(2 * SAMPLES / 4.0), "not the mean of 1000 and 333"
    unequal = [[Work(samples=10, seconds=1.0)], [Work(samples=90, seconds=1.0)]]
    assert throughput(unequal) == pytest.approx(50.0)


def test_the_known_ratio_is_recovered():
    random = np.random.default_rng(7)
    found = ratio(simulated(random, TRUE_RATIO, 12, 10, 0.01, 0.01), simulated(random, 1.0, 12, 10, 0.01, 0.01))
    assert found.value == pytest.approx(TRUE_RATIO, rel=0.02)
    assert found.low < TRUE_RATIO < found.high
    assert found.high - found.low < 0.1


@pytest.mark.parametrize(("runs", "epochs", "between"), [(3, 11, 0.03), (6, 4, 0.03), (1, 12, 0.0)])
def test_the_interval_covers_the_true_ratio_about_19_times_in_20(runs, epochs, between, constants):
    constants("hotlap.judge.ratio", RESAMPLES=999)
    random = np.random.default_rng(20)
    covered = 0
    for _ in range(300):
        arm = simulated(random, TRUE_RATIO, runs, epochs, between, 0.05)
        found = ratio(arm, simulated(random, 1.0, runs, epochs, between, 0.05))
        covered += found.low <= TRUE_RATIO <= found.high
    assert 0.88 <= covered / 300 <= 0.99


def test_whole_runs_are_resampled_from_three_runs_on_and_epochs_below():
    three = runs_of([1.0, 1.1], [1.2, 1.3], [1.4, 1.5])
    assert ratio(three, three).resampled == RUNS
    assert ratio(three[:2], three).resampled == EPOCHS


def test_runs_that_differ_widen_the_interval_even_when_their_epochs_do_not():
    """Twenty equal epochs of three different runs are three samples, not sixty."""
    unlike = runs_of([1.0] * 20, [1.2] * 20, [1.4] * 20)
    base = runs_of([2.0] * 20, [2.0] * 20, [2.0] * 20)
    by_runs, by_epochs = ratio(unlike, base), ratio([[*unlike[0], *unlike[1], *unlike[2]]], base)
    assert by_runs.resampled == RUNS
    assert by_epochs.resampled == EPOCHS
    assert math.log(by_runs.high / by_runs.low) > 3 * math.log(by_epochs.high / by_epochs.low)


def test_one_epoch_has_a_ratio_but_no_interval():
    found = ratio(runs_of([1.0]), runs_of([2.0, 2.0]))
    assert (found.value, found.low, found.high, found.resampled) == (2.0, None, None, NOTHING)


def test_identical_samples_give_an_interval_of_zero_width():
    """BCa is not defined there."""
    found = ratio(runs_of([1.0, 1.0, 1.0]), runs_of([2.0, 2.0, 2.0]))
    assert (found.low, found.high) == (2.0, 2.0)


def test_the_same_samples_give_the_same_interval():
    random = np.random.default_rng(3)
    arm, base = simulated(random, 2.0, 3, 5, 0.1, 0.1), simulated(random, 1.0, 3, 5, 0.1, 0.1)
    assert ratio(arm, base) == ratio(arm, base)


def test_the_inverse_ratio_has_the_inverse_interval():
    random = np.random.default_rng(3)
    arm, base = simulated(random, 2.0, 4, 5, 0.1, 0.1), simulated(random, 1.0, 4, 5, 0.1, 0.1)
    there, back = ratio(arm, base), ratio(base, arm)
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high, rel=0.05)
