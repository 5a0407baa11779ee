"""The search through the values of an entry stops after slow ones."""

from __future__ import annotations

import pytest

from hotlap.plan.search import EachOne

MODES = ("default", "reduce-overhead", "max-autotune", "another")


def looked_at(speeds: dict[str, float]) -> tuple[list[str], tuple[str, ...]]:
    """The values tried and those left out when the values have these speeds."""
    finding, tried = EachOne(tuple(speeds)), []
    for value in finding.values():
        tried.append(value)
        finding.tell(value, speeds[value])
    return tried, finding.left_out


@pytest.mark.parametrize(
    ("speeds", "looks"),
    [((1.2, 1.1, 0.9, 0.8), 4), ((0.9, 1.0, 0.9, 1.3), 4), ((0.9, 0.8, 1.3, 1.3), 2), ((1.1, 0.0, 0.5, 1.3), 3)],
    ids=["gains", "slow now and then", "two slow in a row", "one failed, one slow"],
)
def test_the_rest_is_left_out_after_two_slow_values_in_a_row(speeds, looks):
    tried, left_out = looked_at(dict(zip(MODES, speeds, strict=True)))
    assert tried == list(MODES[:looks])
    assert left_out == MODES[looks:]
