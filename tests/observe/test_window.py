"""Warm-up ends when steps are steady, and the window ends when it has enough of them."""

from __future__ import annotations

import random

import pytest

from hotlap.observe.window import (
    ENOUGH,
    LONGEST_WARMUP_STEPS,
    MINIMUM_WARMUP,
    MOST_STEPS,
    WarmupDetector,
    enough,
    progress,
)


def warmed_after(seconds: list[float], requested: int | None = None) -> tuple[int, bool]:
    detector = WarmupDetector(requested)
    for number, duration in enumerate(seconds, 1):
        if detector.over(duration):
            assert detector.steps == number
            return number, detector.settled
    raise AssertionError("still warming up")


def jitter(around: float, spread: float, steps: int) -> list[float]:
    chance = random.Random(0)
    return [around * (1 + chance.uniform(-spread, spread)) for _ in range(steps)]


def test_steady_steps_need_only_the_minimum_warm_up():
    assert warmed_after([0.01] * 50) == (MINIMUM_WARMUP, True)


def test_a_slow_first_step_does_not_prolong_warm_up():
    assert warmed_after([9.0] + [0.01] * 50) == (MINIMUM_WARMUP, True)


def test_noise_of_a_busy_machine_hardly_prolongs_warm_up():
    steps, settled = warmed_after([1.0, *jitter(0.02, 0.25, 100)])
    assert settled
    assert steps <= 10


def test_a_compilation_in_the_middle_prolongs_warm_up():
    """After a recompilation at the sixth step, steps are slow and then fast again."""
    falling = [3.0, 0.9, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    detector = WarmupDetector(None)
    slow_at_the_end = [detector.over(duration) for duration in falling]
    assert slow_at_the_end[-1]
    assert detector.settled


def test_a_recompilation_right_at_the_end_of_warm_up_is_noticed():
    """The fastest steps so far take 10 ms, so steps of 2 s are not steady."""
    detector = WarmupDetector(None)
    assert not any(detector.over(duration) for duration in (1.0, 0.01, 0.01, 0.01))
    detector = WarmupDetector(None)
    for duration in (0.01, 0.01, 0.01, 0.01):
        detector.over(duration)
    for duration in (2.0, 2.0, 2.0):
        over = detector.over(duration)
    assert not over


def test_prefetched_batches_do_not_end_warm_up_early():
    """Workers fill their queue while torch starts: the first steps are fast, then the loader's own pace shows."""
    detector = WarmupDetector(None)
    ended = [detector.over(duration) for duration in [0.5] + [0.01] * 3 + [0.1] * 60]
    assert not ended[3]
    assert any(ended)


def test_steps_that_never_settle_end_warm_up_at_the_limit_and_say_so():
    growing = [0.01 * 1.4**number for number in range(30)]
    steps, settled = warmed_after(growing)
    assert not settled
    assert steps < 30


def test_warm_up_has_a_limit_of_steps():
    never_as_fast_as_at_first = [0.001] * 2 + [0.01] * 100
    assert warmed_after(never_as_fast_as_at_first) == (LONGEST_WARMUP_STEPS, False)


def test_slow_steps_do_not_warm_up_for_minutes():
    steps, _ = warmed_after([60.0, 8.0, 7.0, 6.5, 6.0, 6.0, 6.0])
    assert steps <= MINIMUM_WARMUP


def test_a_long_first_step_does_not_use_up_the_time_limit():
    """The first step holds minutes of compilation; the limit on seconds counts from the second."""
    detector = WarmupDetector(None)
    assert not detector.over(300.0)


@pytest.mark.parametrize("requested", [1, 3, 40])
def test_a_requested_warm_up_is_followed_exactly(requested):
    assert warmed_after([float(1 + number % 7) for number in range(100)], requested) == (requested, True)


@pytest.mark.parametrize(
    ("steps", "seconds", "done"),
    [
        (5000, 0.5, True),
        (200, 3.0, True),
        (30, 6.0, True),
        (10, 20.0, True),
        (1, 40.0, True),
        (199, 3.0, False),
        (1000, 2.9, False),
        (29, 19.0, False),
        (0, 100.0, False),
    ],
)
def test_a_window_is_complete_after_enough_seconds_and_steps(steps, seconds, done):
    assert enough(steps, seconds, None) is done


def test_a_requested_window_is_followed_exactly():
    assert not enough(9, 1e6, 10)
    assert enough(10, 0.0, 10)


def test_progress_reaches_one_exactly_when_the_window_is_complete():
    for time, least in ENOUGH:
        assert progress(least, time, None) == 1.0
        assert progress(least, time * 0.99, None) < 1.0 or enough(least, time * 0.99, None)
    assert progress(0, 0.0, None) == 0.0
    assert progress(5, 0.0, 10) == 0.5
    assert progress(20, 0.0, 10) == 1.0


def test_progress_is_full_at_the_most_steps_a_window_may_have():
    assert enough(MOST_STEPS, 0.1, None)
    assert progress(MOST_STEPS, 0.1, None) == 1.0


def test_progress_never_decreases():
    for pace in (0.0001, 0.005, 0.3, 7.0):
        shown = [progress(steps, steps * pace, None) for steps in range(1, 400)]
        assert shown == sorted(shown)
        assert 0.0 <= min(shown) <= max(shown) <= 1.0
