"""Whether other programs compete for the cores."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hotlap.process.others import CoreSeconds, compete


@pytest.mark.parametrize(
    ("idle", "ours", "expected"),
    [(0.0, 20.0, False), (0.0, 10.0, True), (1.0, 10.0, True), (5.0, 5.0, False), (18.0, 2.0, False)],
    ids=["all ours", "half of it theirs", "nearly nothing idle", "much idle", "asleep"],
)
def test_others_compete_where_they_use_much_and_leave_nothing_idle(idle, ours, expected):
    assert compete(CoreSeconds(100.0, 7.0, 3.0), CoreSeconds(120.0, 7.0 + idle, 3.0 + ours)) is expected


def test_no_time_is_no_competition():
    assert not compete(CoreSeconds(5.0, 1.0, 1.0), CoreSeconds(5.0, 1.0, 1.0))


def test_what_a_child_used_is_ours():
    before = CoreSeconds.now()
    subprocess.run([sys.executable, "-c", "sum(range(5_000_000))"], check=True)
    after = CoreSeconds.now()
    assert after.ours > before.ours
    assert after.all > before.all
