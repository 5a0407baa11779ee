"""hotlap list shows what there is in groups, and completion offers it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hotlap import catalog
from hotlap.catalog import patterns


def test_everything_is_listed_once_in_its_group(typed):
    listed = json.loads(typed("list", "--json")[1])
    names = [entry["name"] for entry in listed]
    assert sorted(names) == sorted({*catalog.entries(), *(rule.name for rule in patterns.rules().values())})
    text = typed("list")[1]
    assert text.index("Data: what hotlap run and tune can apply") < text.index("resident-data")
    assert text.index("The loop around it: what hotlap scan finds") < text.index("item-in-loop")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["loader", "--run", "--risk", "exact"], ["loader-persistent", "loader-pinned", "loader-start-method"]),
        (["h10", "--scan"], ["throttled-cleanup", "progress-rate", "anomaly-mode", "set-to-none"]),
        (["C106"], ["fused-optimizer"]),
        (["gpu", "graphs"], ["cuda-graphs"]),
    ],
)
def test_the_list_is_filtered(words, names, typed):
    assert [entry["name"] for entry in json.loads(typed("list", "--json", *words)[1])] == names


def test_rules_are_listed_with_the_precision_that_was_recorded_for_each(typed):
    listed = {entry["code"]: entry for entry in json.loads(typed("list", "--scan", "--json")[1])}
    assert sorted(listed) == sorted(patterns.rules())
    read = listed["H201"]
    true, false, arguable = (int(part.split()[0]) for part in read["judged"].split(", "))
    assert read["precision"] == pytest.approx(true / (true + false))
    assert read["precision_if_arguable_is_false"] == pytest.approx(true / (true + false + arguable))
    unmeasured = [entry for code, entry in listed.items() if code not in patterns.precision()]
    assert unmeasured
    assert all(entry["precision"] is None and entry["judged"] == "not measured" for entry in unmeasured)
    assert f"precision {100 * read['precision']:.0f} % of {true + false}" in " ".join(typed("list", "H201")[1].split())


def test_the_committed_precision_is_that_of_the_committed_verdicts():
    script = Path(__file__).parents[2] / "benchmarks" / "render" / "render_scan.py"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell_asks_hotlap(shell, typed):
    code, script, _ = typed("completion", shell)
    assert code == 0
    assert f"_HOTLAP_COMPLETE={shell}_complete" in script


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("hotlap pro", ["plain,profile"]),
        ("hotlap run --with fused", ["plain,fused-optimizer"]),
        ("hotlap explain item", ["plain,item-in-loop"]),
        ("hotlap tune --ris", ["plain,--risk"]),
        ("hotlap run python tr", ["file,tr"]),
    ],
)
def test_verbs_options_names_and_files_are_completed(line, offered, typed, monkeypatch):
    monkeypatch.setenv("_HOTLAP_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    assert typed()[1].splitlines() == offered
