"""The SARIF output follows the standard (2.1.0) and the requirements of GitHub's code scanning."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.scan.command import PROGRAM, TWO, scan

# The objects of the standard that are used: their required properties, then the optional ones, each with its type.
TEXT, NUMBER, BOOLEAN = str, int, bool
MESSAGE = ({"text": TEXT}, {"markdown": TEXT})
ARTIFACT = ({}, {"uri": TEXT, "uriBaseId": TEXT, "description": MESSAGE})
REGION = ({"startLine": NUMBER}, {"startColumn": NUMBER, "endLine": NUMBER, "endColumn": NUMBER})
PHYSICAL = ({"artifactLocation": ARTIFACT}, {"region": REGION})
LOCATION = ({"physicalLocation": PHYSICAL}, {"id": NUMBER, "message": MESSAGE})
RULE = (
    {"id": TEXT},
    {
        "name": TEXT, "shortDescription": MESSAGE, "fullDescription": MESSAGE, "help": MESSAGE,
        "defaultConfiguration": ({}, {"level": TEXT}), "properties": dict,
    },
)  # fmt: skip
DRIVER = (
    {"name": TEXT},
    {"version": TEXT, "semanticVersion": TEXT, "informationUri": TEXT, "rules": [RULE]},
)
RESULT = (
    {"message": MESSAGE},
    {
        "ruleId": TEXT, "ruleIndex": NUMBER, "level": TEXT, "locations": [LOCATION], "relatedLocations": [LOCATION],
        "partialFingerprints": dict, "properties": dict,
    },
)  # fmt: skip
NOTE = ({"message": MESSAGE}, {"level": TEXT, "locations": [LOCATION]})
INVOCATION = ({"executionSuccessful": BOOLEAN}, {"toolExecutionNotifications": [NOTE]})
RUN = (
    {"tool": ({"driver": DRIVER}, {})},
    {"results": [RESULT], "columnKind": TEXT, "originalUriBaseIds": dict, "invocations": [INVOCATION]},
)
LOG = ({"version": TEXT, "runs": [RUN]}, {"$schema": TEXT})


def check(value: Any, kind: Any, where: str = "$") -> None:
    if isinstance(kind, type):
        assert type(value) is kind, where
    elif isinstance(kind, list):
        assert type(value) is list, where
        for number, item in enumerate(value):
            check(item, kind[0], f"{where}[{number}]")
    else:
        required, others = kind
        assert type(value) is dict, where
        assert set(required) <= set(value) <= {*required, *others}, f"{where} has {sorted(value)}"
        for name, item in value.items():
            check(item, {**required, **others}[name], f"{where}.{name}")


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "größe.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path / "a b")
    return tmp_path


def run_of(*arguments: str) -> dict[str, Any]:
    log = json.loads(scan("--format", "sarif", *arguments)[1].split("not scanned\n")[-1])
    check(log, LOG)
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    return run


def test_results_have_rules_levels_places_and_fingerprints():
    run = run_of(*TWO, "..")
    rules = run["tool"]["driver"]["rules"]
    assert len(run["results"]) == 2
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        (place,) = result["locations"]
        region = place["physicalLocation"]["region"]
        assert all(value >= 1 for value in region.values())
        assert (region["endLine"], region["endColumn"]) > (region["startLine"], region["startColumn"])
    prints = [result["partialFingerprints"]["primaryLocationLineHash"] for result in run["results"]]
    assert len(set(prints)) == 2


def test_rules_carry_descriptions_for_people():
    for rule in run_of(*TWO)["tool"]["driver"]["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule["help"]["text"]
        assert rule["help"]["markdown"].startswith("# ")
        assert 1 <= len(rule["properties"]["tags"]) <= 20
        assert rule["properties"]["precision"] in ("very-high", "high", "medium", "low")
        assert rule["properties"]["problem.severity"] in ("error", "warning", "recommendation")


def test_places_are_relative_to_the_repository_wherever_hotlap_is_started():
    run = run_of(*TWO)
    place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "a%20b/gr%C3%B6%C3%9Fe.py", "uriBaseId": "%SRCROOT%"}
    assert "%SRCROOT%" in run["originalUriBaseIds"]
    chain = run["results"][0]["relatedLocations"]
    assert [location["id"] for location in chain] == list(range(len(chain)))
    assert chain[0]["physicalLocation"]["artifactLocation"] == place


def test_unscanned_files_become_notifications():
    (note,) = run_of(*TWO, "..")["invocations"][0]["toolExecutionNotifications"]
    assert "invalid syntax" in note["message"]["text"]
    assert note["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "broken.py"


def test_fingerprints_stay_when_lines_move_and_distinguish_equal_lines(project):
    def prints() -> list[str]:
        return [result["partialFingerprints"]["primaryLocationLineHash"] for result in run_of(*TWO)["results"]]

    before = prints()
    file = project / "a b" / "größe.py"
    file.write_text("# moved\n\n" + PROGRAM)
    assert prints() == before
    twice = PROGRAM.replace("        torch.cuda.empty_cache()\n", "        torch.cuda.empty_cache()\n" * 2)
    file.write_text(twice)
    assert len(set(prints())) == 3


def test_a_whole_loop_is_marked_by_its_first_line(project):
    (project / "a b" / "größe.py").write_text(
        "import torch\n\ndef measure(model: torch.nn.Module, loader: torch.utils.data.DataLoader):\n    model.eval()\n"
        "    hits = 0\n    for x, y in loader:\n        hits += (model(x).argmax(1) == y).sum()\n    return int(hits)\n"
    )
    (result,) = run_of("--select", "H206")["results"]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region["startLine"] == region["endLine"]


def test_a_scan_without_findings_is_a_valid_log(project):
    (project / "a b" / "größe.py").write_text("x = 1\n")
    assert run_of(*TWO)["results"] == []


def test_levels_follow_severity_and_places_in_a_notebook_are_lines_of_its_file(project):
    source = [line + "\n" for line in PROGRAM.splitlines()]
    cells = [{"cell_type": "code", "source": ["import os\n"]}, {"cell_type": "code", "source": source}]
    book = project / "a b" / "book.ipynb"
    book.write_text(json.dumps({"nbformat": 4, "cells": cells}, indent=1))
    results = run_of(*TWO, "book.ipynb")["results"]
    assert {result["ruleId"]: result["level"] for result in results} == {"H101": "error", "H201": "warning"}
    lines = book.read_text().splitlines()
    for result in results:
        places = [result["locations"][0], *result["relatedLocations"]]
        shown = [lines[place["physicalLocation"]["region"]["startLine"] - 1] for place in places]
        assert ("empty_cache" if result["ruleId"] == "H101" else "loss.item()") in shown[0]
        assert "for x, y in loader" in shown[1]
