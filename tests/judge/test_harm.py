"""The real tuner rejects harmful changes: a few here, all of them in benchmarks/prover/prover_planted.py."""

from __future__ import annotations

import json
from pathlib import Path

import prover_planted as planted

RESULTS = Path(planted.__file__).parents[1] / "results"
SEEN_IN = {"zeros-saved": "saved files", "evaluation-constant": "evaluation", "exit-code": "exit code"}


def test_the_tuner_rejects_harmful_speedups_and_finds_no_harm_in_another():
    found = planted.outcome(planted.tune([planted.HARMLESS, *SEEN_IN], steps=25, budget="5m", epochs=10))

    assert {name for name, change in found.items() if change["kept"]} <= {planted.HARMLESS}
    assert not found[planted.HARMLESS]["failed"]  # a busy machine may not show that it is faster
    for name, check in SEEN_IN.items():
        assert check in found[name]["failed"]


def test_the_committed_results_keep_none_of_the_harmful_changes():
    several = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*/*-prover-planted.json")]

    at_once = {name for result in several for name in result["at once"]}
    assert at_once == {planted.HARMLESS, *planted.AT_ONCE}
    assert {name for result in several for name in result["later"]} == set(planted.LATER)
    assert any(
        {risk: set(found) for risk, found in result["by class"].items()}
        == {risk: {planted.HARMLESS, *names} for risk, names in planted.BY_CLASS.items()}
        for result in several
    )
    assert sum(result["harmful"] for result in several) >= 20
    assert all(result["harmful kept"] == 0 for result in several)
    assert sum(result["harmless kept"] for result in several) == 3 + len(several) - 1
