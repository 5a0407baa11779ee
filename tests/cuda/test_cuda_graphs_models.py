"""On a GPU, several models, and several calls before a backward, are replayed with the same numbers to the bit."""

from __future__ import annotations

import gc

import pytest
import torch

import hotlap
from tests.catalog.emulated_graphs import adam, same, sgd
from tests.catalog.test_cuda_graphs_models import adversaries, pair

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def repeatable(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    hotlap.disable()
    torch.use_deterministic_algorithms(False)


def graphs_of(train, **ways):
    """The result of a training under graphs, and the outcome of the entry."""
    with hotlap.enable(None, with_=["cuda-graphs"]) as enabled:
        found = train(device="cuda", **ways)
        torch.cuda.synchronize()
        return found, enabled.outcomes[0]


@pytest.mark.parametrize(
    "ways", [{}, {"critics": 3}, {"freeze": True}, {"apart": True}, {"optimizer": sgd}, {"critics": 2, "freeze": True}]
)
def test_adversaries_train_bit_for_bit_the_same(ways):
    before = adversaries(device="cuda", **ways)
    found, outcome = graphs_of(adversaries, **ways)
    assert outcome.status == "applied", outcome
    assert "Generator" in outcome.why
    assert "forward and backward of Judge" in outcome.why
    assert same(before, found)


@pytest.mark.parametrize("ways", [{}, {"views": 4}, {"views": 7}, {"optimizer": adam}, {"keeps": True}])
def test_several_views_train_bit_for_bit_the_same(ways):
    before = pair(device="cuda", **ways)
    found, outcome = graphs_of(pair, **ways)
    assert outcome.status == "applied", outcome
    assert "forward and backward of Net" in outcome.why
    assert same(before, found)


def test_optimizers_of_adversaries_are_replayed():
    """A critic's losses are differentiated apart: autograd puts the sum of two gradients wherever memory is free."""
    _, outcome = graphs_of(adversaries, epochs=40, apart=True)
    assert "Adam's step and Adam's step too" in outcome.why, outcome


def test_an_optimizer_is_replayed_beside_one_whose_gradients_move():
    _, outcome = graphs_of(adversaries, epochs=40)
    assert "Adam's step" in outcome.why, outcome


def test_discarded_models_release_their_memory():
    with hotlap.enable(None, with_=["cuda-graphs"]):
        taken = []
        for _ in range(3):
            adversaries(device="cuda")
            gc.collect()
            torch.cuda.synchronize()
            taken.append(torch.cuda.memory_allocated())
    assert taken[2] <= taken[1] + (1 << 20), taken
