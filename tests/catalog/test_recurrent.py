"""recurrent flattens separated weights once."""

import copy
import importlib

import pytest
import torch
from catalog.compute_models import ROWS, SERIES, Recurrent, mlp, train
from observations import device, kernel, model, observation
from torch import nn

from hotlap.catalog import entries
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.runtime.root_discovery import RootDiscovery
from hotlap.runtime.site import Site

recurrent = importlib.import_module("hotlap.catalog.recurrent.apply")


@pytest.fixture
def site():
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    made = Site("recurrent", entries()["recurrent"].code, None, torch, seams, RootDiscovery(seams))
    recurrent.apply(made)
    yield made
    made.close()
    seams.close()


def in_one_piece(layer):
    """Flattens the weights as torch does on a GPU: matrices first, then biases, as views of one storage."""
    weights = sorted(layer._flat_weights, key=lambda weight: -weight.dim())
    piece = torch.cat([weight.detach().flatten() for weight in weights])
    start = 0
    for weight in weights:
        weight.data = piece[start : start + weight.numel()].view_as(weight)
        start += weight.numel()


def test_recognises_flat_weights():
    layer = nn.LSTM(3, 5, num_layers=2)
    assert not recurrent.is_flat(layer)
    in_one_piece(layer)
    assert recurrent.is_flat(layer)
    assert not recurrent.is_flat(copy.deepcopy(layer))  # a copy has separate weights


def test_weights_in_one_storage_but_another_order_are_not_flat():
    layer = nn.LSTM(3, 5, num_layers=2)
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(layer.parameters()), layer.parameters())
    assert not recurrent.is_flat(layer)


def test_separated_weights_are_flattened_again(site, monkeypatch, answering):
    answering(recurrent, on_gpu=True)

    def first_step(step, *_):  # not earlier: moving the model would flatten them again
        monkeypatch.setattr(nn.LSTM, "flatten_parameters", in_one_piece)

    _, module, _, _ = train(Recurrent, SERIES, steps=4, between=first_step)
    assert site.outcome.why == "1 of 1 layers had their weights copied into one block at every call"
    assert recurrent.is_flat(module.lstm)


def test_has_no_effect_on_a_cpu(site):
    train(Recurrent, SERIES, steps=4)
    assert site.outcome.status == "no effect"


def test_has_no_effect_on_models_without_recurrent_layers(site):
    train(mlp, ROWS, steps=4)
    assert site.outcome.why == "the model has no recurrent layers"


def test_estimates_its_gain():
    detect = entries()["recurrent"].detect
    seen = observation(
        models=(model(device="cuda:0", layers={"LSTM": 1}),), device=device(8.0, kernels=(kernel("copy", 0.5),))
    )
    assert detect(seen).most == pytest.approx(0.4)
    assert detect(observation()) is None
