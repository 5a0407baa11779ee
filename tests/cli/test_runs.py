"""hotlap runs lists what was saved; show and report take the newest run that has something to show."""

from __future__ import annotations

import json

import pytest

from hotlap import store
from hotlap.diagnose import diagnose
from tests.observations import input_bound
from tests.report import tunings

COMMAND = ("python", "train.py")


@pytest.fixture
def saved(tmp_path):
    """Three runs: a tune, a profile, and one that ended before its first step."""
    tune, profile, empty = (store.create(COMMAND, tmp_path / "kept") for _ in range(3))
    tune.save("tuning", tunings.small())
    profile.save("observation", input_bound())
    profile.save("diagnosis", diagnose(input_bound()))
    return tune, profile, empty


def test_runs_are_listed_the_newest_first_with_their_result(saved, typed):
    code, out, _ = typed("runs")
    lines = out.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines[1:4]] == [run.id for run in reversed(saved)]
    assert "nothing to show: it ended too early" in lines[1]
    assert "profile" in lines[2]
    assert "Input-bound" in lines[2]
    assert "2.4× as fast, proven:" in lines[3]
    assert lines[-1] == f"one of them: hotlap show {saved[1].id}", "the newest that has something to show"


def test_runs_are_filtered_and_counted(saved, typed):
    assert [run["verb"] for run in json.loads(typed("runs", "--verb", "tune", "--json")[1])] == ["tune"]
    text = typed("runs", "--last", "1")[1]
    assert "2 older: hotlap runs --last 3" in text


def test_without_runs_the_line_says_how_to_make_one(typed, tmp_path):
    code, out, said = typed("runs", "--verb", "compare")
    assert (code, out) == (72, "")
    assert said.startswith(
        f"hotlap: no run of hotlap compare in {tmp_path / 'kept'}; make one: hotlap compare main HEAD"
    )


@pytest.mark.parametrize("verb", ["show", "report"])
def test_the_newest_run_with_a_result_is_shown(verb, saved, typed):
    code, out, _ = typed(verb)
    assert code == 0
    assert out.startswith("Input-bound")


def test_a_run_without_a_result_is_refused_by_name_and_where_there_is_no_other(saved, typed, tmp_path):
    code, _, said = typed("show", saved[2].id)
    assert code == 72
    assert "ended too early; choose another run: hotlap runs" in said
    code, _, said = typed("show", "--run-dir", str(store.create(COMMAND, tmp_path / "other").folder.parents[1]))
    assert code == 72
    assert "has a result" in said


def test_completion_knows_the_runs(saved, typed, monkeypatch):
    monkeypatch.setenv("_HOTLAP_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "hotlap show 2")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert [line.partition(",")[2] for line in typed()[1].splitlines()] == [run.id for run in reversed(saved)]
