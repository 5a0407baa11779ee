"""The figures of a bench are computed from the raw lines of its arms."""

from __future__ import annotations

import pytest

from hotlap.bench import contract, table
from hotlap.bench.order import schedule, seconds_left
from hotlap.bench.record import Choice, Line
from tests.bench.benches import bench_of, lines_of, run_of, usual_bench


def row_of(bench, workload, arm):
    (row,) = [row for row in bench.summary if (row.workload, row.arm) == (workload, arm)]
    return row


def test_lines_of_an_arm_are_read():
    lines = [
        Line(at=1.0, text="some library says hello"),
        Line(at=1.5, text="train 800 samples  valid 200 samples"),
        Line(at=1.6, text="settings precision=bf16-mixed compile=no"),
        Line(at=3.0, text="epoch 1  loss nan  file_f1 0.5  segment_f1 0.25  seconds 1.234e-2"),
        Line(at=4.0, text="epochs are fun"),
        Line(at=5.0, text="final segment_f1 0.2600 target 0.9000 missed"),
    ]
    found = contract.read(lines)
    assert (found.samples, found.settings, found.metric) == (800, "precision=bf16-mixed compile=no", "segment_f1")
    assert (found.final, found.target, found.reached) == (0.26, 0.9, False)
    assert found.epochs == (contract.Epoch(number=1, at=3.0, seconds=0.01234, metric=0.25),)
    assert contract.last_epoch(lines) == 1


@pytest.mark.parametrize(
    ("drop", "add", "message"),
    [
        ("train", "", "no lines `train N samples`"),
        ("final", "", "no lines `final METRIC"),
        ("epoch", "", "no lines `epoch N"),
        ("epoch", "epoch 1  loss 1.0  seconds 1.0", "no rmse in the line"),
        ("epoch", "epoch 1  loss 1.0  rmse 1.0", "no seconds in the line"),
        ("epoch", "epoch 1  rmse x  seconds 1.0", "rmse of epoch 1 is 'x'"),
        ("epoch", "epoch 1  rmse 1  seconds inf", "an epoch of inf seconds"),
        ("train", "train 0 samples  valid 1 samples", "0 samples"),
        ("", "final rmse 1 target 1 reached", "printed 2 lines"),
    ],
)
def test_rejects_lines_that_break_the_contract_with_the_reason(drop, add, message):
    lines = [line for line in lines_of([1.0], [0.1]) if not drop or not line.text.startswith(drop)]
    with pytest.raises(contract.Unreadable, match=message):
        contract.read([*lines, Line(at=0.0, text=add)])


def test_throughput_excludes_the_first_epoch_of_each_run():
    bench = bench_of(
        run_of("sun", "naive", 0, lines_of([100.0, 1.0, 3.0], [1, 1, 1])),
        run_of("sun", "naive", 1, lines_of([100.0, 2.0, 2.0], [1, 1, 1])),
    )
    row = row_of(bench, "sun", "naive")
    assert row.samples_per_second == pytest.approx(4 * 1000 / 8.0)
    assert not row.single_epoch


def test_a_single_epoch_is_used_and_marked():
    bench = bench_of(run_of("sun", "naive", 0, lines_of([4.0], [1])), run_of("sun", "limit", 0, lines_of([2.0], [1])))
    row = row_of(bench, "sun", "limit")
    assert row.samples_per_second == 500.0
    assert row.single_epoch
    assert row.warmup_seconds is None
    assert (row.ratio.value, row.ratio.low) == (2.0, None)
    assert table.cells(row)[2:4] == ("500*", "2.00 [one sample]")
    assert any("warm-up is in the figure" in note for note in table.notes(bench))


def test_the_ratio_is_to_naive_and_has_an_interval():
    row = row_of(usual_bench(), "sun", "limit")
    assert row.ratio.value == pytest.approx(2.0, rel=0.01)
    assert row.ratio.low < 2.0 < row.ratio.high
    assert row_of(usual_bench(), "sun", "naive").ratio is None


def test_without_naive_there_is_no_ratio():
    bench = bench_of(
        run_of("sun", "naive", 0, (), ended="failed", why="exit code 1", exit_code=1),
        run_of("sun", "limit", 0, lines_of([1.0, 1.0], [1, 1])),
    )
    assert row_of(bench, "sun", "limit").ratio is None
    assert table.cells(row_of(bench, "sun", "naive"))[2] == "broken"


@pytest.mark.parametrize(("higher", "expected"), [(False, 10 + 5.0 + 2 * 5.0), (True, 10 + 5.0)])
def test_time_to_target_is_when_the_first_epoch_meets_it(higher, expected):
    lines = lines_of([4.0, 4.0, 4.0, 4.0], [0.5, 0.3, 0.2, 0.1])
    row = row_of(bench_of(run_of("sun", "naive", 0, lines), higher_is_better=higher), "sun", "naive")
    assert row.seconds_to_target == (expected,)


def test_a_target_met_by_only_some_seeds_is_reported():
    bench = bench_of(
        run_of("sun", "naive", 0, lines_of([4.0, 4.0], [0.5, 0.2])),
        run_of("sun", "naive", 1, lines_of([4.0, 4.0], [0.2, 0.5])),
        run_of("sun", "naive", 2, lines_of([4.0, 4.0], [0.5, 0.5])),
    )
    row = row_of(bench, "sun", "naive")
    assert table.to_target(row) == "17.5 [15.0, 20.0], not reached in 1 of 3"
    assert table.target(row) == "rmse 0.25 missed in 2 of 3"
    assert table.quality(row) == "0.2000, 0.5000, 0.5000 (0.4000)"
    nowhere = bench_of(run_of("sun", "naive", 2, lines_of([4.0, 4.0], [0.5, 0.5])))
    assert table.to_target(row_of(nowhere, "sun", "naive")) == "not reached in 1 of 1"


def test_warm_up_is_the_time_to_the_first_epoch_line_less_a_steady_epoch():
    lines = lines_of([9.0, 4.0, 4.0], [1, 1, 1])
    row = row_of(bench_of(run_of("sun", "naive", 0, lines)), "sun", "naive")
    assert row.warmup_seconds == (10 + 9 + 1) - (4 + 1)


def test_memory_is_the_peak_of_all_runs():
    assert row_of(usual_bench(), "sun", "naive").peak_host_mb == 102.0


def test_broken_runs_are_counted_and_named():
    row = row_of(usual_bench(), "sun", "accelerate")
    assert (row.trained, row.runs) == (0, 1)
    assert row.broken == ("seed 0: exit code 3: a <bug> | a *star*",)
    assert table.broken(usual_bench()) == ["sun accelerate, seed 0: exit code 3: a <bug> | a *star*"]


def test_the_time_left_is_estimated_from_earlier_runs_of_the_same_arm():
    choice = Choice(workloads=("sun",), arms=("naive", "limit"), size="tiny", device="cpu", seeds=2, epochs=None)
    keys = schedule(choice)
    assert keys == [("sun", "naive", 0), ("sun", "limit", 0), ("sun", "limit", 1), ("sun", "naive", 1)]
    assert seconds_left((), keys, None, 0.0) is None
    naive, limit = (run_of("sun", arm, 0, (), seconds=took) for arm, took in (("naive", 30.0), ("limit", 10.0)))
    assert seconds_left((naive, limit), keys[2:], None, 0.0) == 40.0
    assert seconds_left((naive, limit), keys[3:], keys[2], 4.0) == 30.0 + 6.0
    assert seconds_left((naive, limit), keys[3:], keys[2], 99.0) == 30.0, "a late run is expected to end now"
    assert seconds_left((naive,), keys[2:], keys[1], 0.0) == 3 * 30.0, "an arm never seen counts as its neighbour"
    assert seconds_left((naive,), [("moon", "limit", 0)], None, 0.0) == 30.0
