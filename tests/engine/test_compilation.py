"""What the compiler cannot see as one graph is said, or refused on request; autotuned code is tried on long trainings.

The compiler's own analysis is real here; the code that it generates is not, which would take minutes.
"""

from __future__ import annotations

import pytest
import torch

from hotlap.engine import choice
from hotlap.engine.compilation import CompiledLoss
from hotlap.engine.errors import CompileFailed
from tests.engine.training import Net, fitted, outcome, same

FIXED = {"threads": 1, "onednn": "off", "epochs": 2}


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
    """The compiler without its code generator; returns the options of each call."""
    real, asked = torch.compile, []

    def compiled(function, **options):
        asked.append(options)
        return real(function, backend="eager", **{name: options[name] for name in options if name != "mode"})

    monkeypatch.setattr(torch, "compile", compiled)
    torch._dynamo.reset()
    yield asked
    torch._dynamo.reset()


class Looks(Net):
    """A model that looks at its outputs on the host."""

    def forward(self, inputs):
        found = super().forward(inputs)
        return found * 0.5 if found.sum().item() > 1e9 else found


def test_a_step_that_is_one_graph_trains_as_without_the_compiler():
    said = []
    found = fitted(compile="fullgraph", say=said.append, **FIXED)
    same(outcome(*found), outcome(*fitted(**FIXED)))
    assert any(line.startswith("step: compiled, ") for line in said)


def test_fullgraph_refuses_a_step_in_pieces_and_names_the_line():
    with pytest.raises(CompileFailed, match=r"the step is not one graph: .*test_compilation\.py.*compile=\"on\""):
        fitted(model=Looks, compile="fullgraph", **FIXED)


def test_a_step_in_pieces_is_compiled_all_the_same_and_said():
    said = []
    found = fitted(model=Looks, compile="on", say=said.append, **FIXED)
    same(outcome(*found), outcome(*fitted(model=Looks, **FIXED)))
    assert found[1].mode == "compiled"
    (line,) = [line for line in said if "in pieces" in line]
    assert "test_compilation.py" in line


def test_batches_of_many_shapes_and_errors_of_the_program_are_told_apart():
    said = []
    summed = CompiledLoss(lambda batch: batch.sum(), said.append)
    assert [summed(torch.ones(rows)) for rows in range(1, 13)] == [float(rows) for rows in range(1, 13)]
    assert said == ["the compiler does not see the step as one graph, but in pieces: batches have too many shapes"]

    def broken(batch):
        raise ValueError("a bug of the program")

    with pytest.raises(ValueError, match="a bug of the program"):
        CompiledLoss(broken, said.append)(torch.ones(1))


@pytest.mark.parametrize(("ahead", "tried"), [(0.0, True), (1e9, False)])
def test_autotuned_code_is_tried_where_much_training_lies_ahead(ahead, tried, compiler, monkeypatch):
    monkeypatch.setattr(choice, "COMPILE_PAYS_FROM", 0.0)
    monkeypatch.setattr(choice, "AUTOTUNING_PAYS_FROM", ahead)
    fitted(compile="auto", **FIXED)
    assert any("mode" in options for options in compiler) is tried


def test_autotuned_code_is_chosen_where_it_is_fastest(monkeypatch):
    monkeypatch.setattr(choice, "COMPILE_PAYS_FROM", 0.0)
    monkeypatch.setattr(choice, "AUTOTUNING_PAYS_FROM", 0.0)

    def by_turns(attempts):
        attempts.runs = {mode: (1.0 if mode.autotuned else 2.0, run) for mode, (_, run) in attempts.runs.items()}

    monkeypatch.setattr(choice.Attempts, "_by_turns", by_turns)
    assert fitted(compile="auto", **FIXED)[1].mode == "compiled with autotuning"
