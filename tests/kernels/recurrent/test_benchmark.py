"""recurrent.py of the benchmarks measures each shape once over several calls and never mixes incomparable results."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
SPEEDS = {"lstm": 2.0, "gru": 8.0}


@pytest.fixture
def bench(monkeypatch, answering, constants):
    """The script with an instant measurement, whose speedup depends only on the kind of layer."""
    monkeypatch.syspath_prepend(str(BENCHMARKS / "recurrent"))
    import recurrent
    import recurrent_cases

    def measured(point, place, graphs, seconds):
        bench.ran.append(point.name)
        if point.name in bench.fails:
            raise bench.fails[point.name]
        same = {"cudnn": 1, "ours": 1}
        return {
            "point": asdict(point), "name": point.name, "variant": "torch", "speedup": SPEEDS[point.kind],
            "ms": {"cudnn": [2.0], "ours": [1.0]}, "bytes": same, "error": same, "tried_ms": {},
        }  # fmt: skip

    class Bench:
        ran, fails, cases, part_of = [], {}, recurrent_cases, staticmethod(recurrent.part_of)

        @staticmethod
        def call(*given):
            monkeypatch.setattr(sys, "argv", ["recurrent.py", *map(str, given)])
            recurrent.main()

        @staticmethod
        def measure(out, *given):
            bench.ran.clear()
            bench.call("--device", "cpu", "--out", out, *given)
            return json.loads(out.read_text())

    bench = Bench
    monkeypatch.setattr(recurrent, "measured", measured)
    answering(recurrent.signal, signal=None)
    constants(recurrent.selection, MEASURED_AT_MOST=64)
    answering(recurrent_cases.Place, tidy=None)
    answering(recurrent.gc, freeze=None)
    yield bench
    for name in ("recurrent", "recurrent_cases"):
        sys.modules.pop(name, None)


def names(content):
    return [point["name"] for point in content["points"]]


def test_the_grid_is_complete_and_starts_with_every_kind(bench):
    grid = bench.cases.grid()
    assert len(grid) == len(set(grid)) == 2 * 5 * 3 * 5 * 3 * 3
    assert set(grid) == set(bench.cases.whole())
    begin = grid[:100]
    assert sum(point.of_the_reports for point in begin) >= 45
    for part in range(1, 5):
        assert 0.2 < sum(point.of_the_reports for point in bench.part_of(grid, part, 4)) / 338 < 0.23
    for name, values in {**bench.cases.GRID, "layers": (1, 2, 3), "features": (3, 8, 64)}.items():
        assert {getattr(point, name) for point in begin} == set(values)


def test_parts_cover_every_shape_once_and_merge_into_one_file(bench, tmp_path):
    for number in (1, 2, 3):
        bench.measure(tmp_path / f"{number}.json", "--quick", "--part", f"{number}/3")
    bench.call("--merge", *(tmp_path / f"{number}.json" for number in (1, 2, 3)), "--out", tmp_path / "all.json")
    content = json.loads((tmp_path / "all.json").read_text())
    assert sorted(names(content)) == sorted(point.name for point in bench.cases.quick())
    assert content["summary"]["geometric_mean_speedup"]["all"] == pytest.approx(4)
    assert [call["command"] for call in content["about"]["calls"]] == [
        f"recurrent.py --device cpu --out {number}.json --quick --part {number}/3" for number in (1, 2, 3)
    ]


def test_a_killed_run_keeps_its_measurements_and_can_be_resumed(bench, tmp_path, monkeypatch):
    out, third = tmp_path / "out.json", bench.cases.quick()[2].name
    bench.fails = {third: SystemExit(137)}
    with pytest.raises(SystemExit):
        bench.measure(out, "--quick", "--shapes", 5)
    assert len(names(json.loads(out.read_text()))) == 2
    bench.fails = {}
    content = bench.measure(out, "--quick", "--shapes", 5, "--resume")
    assert (len(bench.ran), len(names(content)), len(content["about"]["calls"])) == (3, 5, 2)


def test_a_shape_that_breaks_the_device_ends_the_call_and_is_skipped_by_the_next(bench, tmp_path):
    out, points = tmp_path / "out.json", bench.cases.quick()
    bench.fails = {points[0].name: torch.cuda.OutOfMemoryError(), points[2].name: RuntimeError("illegal access")}
    with pytest.raises(RuntimeError, match="illegal access"):
        bench.measure(out, "--quick", "--shapes", 4)
    content = bench.measure(out, "--quick", "--shapes", 4, "--resume")
    assert names(content) == [points[1].name, points[3].name]
    assert content["failed"] == {points[0].name: "too little memory", points[2].name: "illegal access"}


def test_the_mean_of_a_part_weights_shapes_as_the_grid_does(bench, tmp_path, monkeypatch):
    monkeypatch.setitem(SPEEDS, "gru", 2.0)
    content = bench.measure(tmp_path / "out.json", "--shapes", 30)
    found = content["summary"]["geometric_mean_speedup"]
    assert found["grid"] == pytest.approx(2) == found["all"]
    import recurrent

    assert recurrent.of_the_grid(3.0, None) is None
    assert recurrent.of_the_grid(4.0, 1.0) == pytest.approx(4 ** (288 / 1350))


def test_results_of_other_machines_or_versions_are_not_mixed(bench, tmp_path):
    out = tmp_path / "out.json"
    content = bench.measure(out, "--quick", "--shapes", 1)
    content["about"]["torch"] = "1.0"
    out.write_text(json.dumps(content))
    with pytest.raises(SystemExit, match=r"measured with torch '1.0'"):
        bench.measure(out, "--quick", "--shapes", 2, "--resume")


@pytest.mark.parametrize("part", ["0/3", "4/3", "2", "/", "a/b", "1/0"])
def test_rejects_an_invalid_part(bench, tmp_path, part, capsys):
    with pytest.raises(SystemExit):
        bench.measure(tmp_path / "out.json", "--part", part)
    assert f"{part!r} is no part" in capsys.readouterr().err


def test_timing_a_shape_respects_the_time_limit(bench):
    place = bench.cases.Place("cpu")
    slow = {"cudnn": lambda: None, "ours": lambda: None}
    rounds = [len(bench.cases.interleaved(place, slow, False, seconds)["cudnn"]) for seconds in (0.0, 60.0)]
    assert rounds == [1, bench.cases.ROUNDS]
