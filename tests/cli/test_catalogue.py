"""hotlap list shows what there is in groups, and completion offers it."""

from __future__ import annotations

import json

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
        (["loader", "--for", "run", "--risk", "exact"], ["loader-persistent", "loader-pinned", "loader-start-method"]),
        (["h10", "--for", "scan"], ["anomaly-mode", "set-to-none"]),
        (["C106"], ["fused-optimizer"]),
        (["gpu", "graphs"], ["cuda-graphs"]),
    ],
)
def test_the_list_is_filtered(words, names, typed):
    assert [entry["name"] for entry in json.loads(typed("list", "--json", *words)[1])] == names


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
