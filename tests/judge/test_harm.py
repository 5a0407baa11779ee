"""Harmful changes through the real tuner: a few here, all of them in benchmarks/prover/prover_planted.py."""

from __future__ import annotations

import json
from pathlib import Path

import prover_planted as planted

RESULTS = Path(planted.__file__).parents[1] / "results"
SEEN_IN = {"zeros-saved": "saved files", "evaluation-constant": "evaluation", "exit-code": "exit code"}


def test_what_is_faster_and_harmless_is_kept_and_what_does_harm_is_not():
    found = planted.outcome(planted.tune([planted.HARMLESS, *SEEN_IN], steps=25, budget="5m", epochs=10))

    assert [name for name, one in found.items() if one["kept"]] == [planted.HARMLESS]
    for name, check in SEEN_IN.items():
        assert found[name]["looked"] > 1, "it looks faster"
        assert check in found[name]["failed"]


def test_the_committed_results_keep_none_of_the_harmful_changes():
    several = [json.loads(one.read_text(encoding="utf-8")) for one in RESULTS.glob("*/*-prover-planted.json")]

    at_once = {name for told in several for name in told["at once"]}
    assert at_once == {planted.HARMLESS, *planted.AT_ONCE}
    assert {name for told in several for name in told["later"]} == set(planted.LATER)
    assert any(
        {risk: set(found) for risk, found in told["by class"].items()}
        == {risk: {planted.HARMLESS, *names} for risk, names in planted.BY_CLASS.items()}
        for told in several
    )
    assert sum(told["harmful"] for told in several) >= 20
    assert all(told["harmful kept"] == 0 for told in several)
    assert sum(told["harmless kept"] for told in several) == 3 + len(several) - 1
