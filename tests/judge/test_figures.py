"""The figures of a verdict survive a round trip through JSON."""

from __future__ import annotations

from hotlap.records.codec import from_json, to_json
from hotlap.records.verdict import Gate


def test_the_figures_of_a_verdict_are_read_back_as_saved():
    gate = Gate(risk="exact", passed=None, rule="", why="", figures=(("margin", 0.5), ("seeds", 3.0)))

    assert from_json(Gate, to_json(gate), "test") == gate
