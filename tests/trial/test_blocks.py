"""Warm-up and blocks are found from the times of the steps."""

from __future__ import annotations

import pytest

from hotlap.trial.blocks import blocks, warmup_steps


def ends(*seconds: float) -> list[float]:
    total, found = 10.0, []
    for duration in seconds:
        total += duration
        found.append(total)
    return found


def test_warm_up_ends_when_steps_are_steady():
    assert warmup_steps(10.0, ends(5.0, 1.0, 0.5, *[0.1] * 50)) in range(5, 9)


def test_a_long_compilation_does_not_end_warm_up():
    assert warmup_steps(10.0, ends(0.1, 0.1, 60.0, 30.0, *[0.1] * 60)) in range(4, 10)


def test_steps_that_never_become_steady_warm_up_for_half_of_the_run():
    assert warmup_steps(10.0, ends(*(0.1 * 2.0 ** (step % 5) for step in range(4, 44)))) <= 20


def test_an_early_recompilation_is_warm_up_and_a_recurring_stall_is_not():
    assert warmup_steps(10.0, ends(*[0.1] * 12, 8.0, *[0.1] * 60)) == 13
    assert warmup_steps(10.0, ends(*[0.1] * 12, 8.0, *[0.1] * 30, 8.0, *[0.1] * 30)) == 5


def test_every_step_after_warm_up_is_in_a_block():
    moments = [(step, step * 0.1) for step in range(1, 101)]
    found = blocks(moments, 7, 32.0)

    assert len(found) <= 12
    assert (found[0].first, sum(block.steps for block in found)) == (7, 93)
    assert sum(block.seconds for block in found) == pytest.approx(9.3)
    assert all(block.samples == 32.0 * block.steps for block in found)


def test_few_device_times_make_few_blocks():
    found = blocks([(10, 0.0), (40, 1.5), (75, 3.0)], 8, 1.0)

    assert [(block.first, block.steps, block.seconds) for block in found] == [(10, 30, 1.5), (40, 35, 1.5)]
    assert blocks([(10, 0.0)], 8, 1.0) == ()


def test_steps_before_the_data_is_cached_are_warm_up():
    """The data is cached from the second epoch on; the evaluation between the epochs is one long step."""
    slow, quick = [0.1, 0.11] * 50, [0.03] * 80
    assert warmup_steps(10.0, ends(*slow, 0.5, *quick)) in range(98, 106)


def test_steps_that_become_slower_are_not_warm_up():
    assert warmup_steps(10.0, ends(*[0.03] * 100, *[0.1] * 80)) < 15
