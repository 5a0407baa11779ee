"""recurrent-kernels: calls of recurrent layers go another way; the layers stay as they are."""

import importlib
import io

import pytest
import torch
from catalog.compute_models import ROWS, SERIES, Recurrent, mlp, train
from observations import device, kernel, model, observation
from torch import nn

from hotlap.catalog import entries
from hotlap.kernels.recurrent import recurrence_steps, selection
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.runtime.root_discovery import RootDiscovery
from hotlap.runtime.site import Site

swapping = importlib.import_module("hotlap.catalog.recurrent_kernels.apply")


@pytest.fixture
def site():
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    made = Site("recurrent-kernels", entries()["recurrent-kernels"].code, None, torch, seams, RootDiscovery(seams))
    swapping.apply(made)
    yield made
    made.close()
    seams.close()


@pytest.fixture
def as_if_on_a_gpu(monkeypatch):
    """The layers count as if they were there, and are run by the same algorithm in plain torch."""
    monkeypatch.setattr(swapping, "on_gpu", lambda _: True)
    walked = []

    forward = recurrence_steps.forward
    monkeypatch.setattr(recurrence_steps, "forward", lambda name, one: walked.append(one.kind) or forward(name, one))
    with selection.forced("torch"):
        yield walked


def test_calls_of_the_layers_go_our_way_and_train_alike(site, as_if_on_a_gpu):
    with selection.forced("cudnn"):  # torch's own path
        expected, _, _, _ = train(Recurrent, SERIES, steps=8)
    assert as_if_on_a_gpu == []
    losses, module, _, _ = train(Recurrent, SERIES, steps=8)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert site.outcome.status == "applied"
    assert site.outcome.why == "1 of 1 recurrent layers, by whichever way is fastest for their shape"
    assert len(as_if_on_a_gpu) >= 5  # from the moment the root is known
    assert type(module.lstm) is nn.LSTM
    assert "forward" not in vars(module.lstm)


def test_only_layers_of_a_root_go_our_way(site, as_if_on_a_gpu):
    train(Recurrent, SERIES, steps=4)
    as_if_on_a_gpu.clear()
    nn.LSTM(3, 5)(torch.randn(4, 2, 3))
    assert as_if_on_a_gpu == []


def test_what_is_saved_is_torchs(site, as_if_on_a_gpu):
    _, module, _, _ = train(Recurrent, SERIES, steps=4)
    saved = io.BytesIO()
    torch.save(module.lstm, saved)
    assert b"hotlap" not in saved.getvalue()


def test_closing_it_puts_torchs_forward_back(site, as_if_on_a_gpu):
    before = dict(vars(nn.LSTM))
    train(Recurrent, SERIES, steps=4)
    site.close()
    assert vars(nn.LSTM) == before
    as_if_on_a_gpu.clear()
    train(Recurrent, SERIES, steps=4)
    assert as_if_on_a_gpu == []


def test_on_a_cpu_there_is_nothing_to_do(site):
    train(Recurrent, SERIES, steps=4)
    assert (site.outcome.status, site.outcome.why) == ("no effect", "its recurrent layers are not on a GPU")


def test_models_without_recurrent_layers(site):
    train(mlp, ROWS, steps=4)
    assert site.outcome.why == "the model has no LSTM and no GRU"


def test_layers_with_projections_or_a_forward_of_their_own_are_left_alone(site, as_if_on_a_gpu):
    class Own(nn.LSTM):
        def forward(self, x, hx=None):
            return super().forward(x, hx)

    assert swapping.why_none([Own(3, 4)]) == "its recurrent layers have projections or a forward of their own"


class Dropping(Recurrent):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(self.lstm.input_size, self.lstm.hidden_size, 2, batch_first=True, dropout=0.5)


def test_layers_that_draw_random_numbers_are_left_alone(site, as_if_on_a_gpu):
    """They would draw others than cuDNN: more than rounding."""
    train(Dropping, SERIES, steps=4)
    assert as_if_on_a_gpu == []
    assert site.outcome.status == "no effect"
    assert "would draw other random numbers" in site.outcome.why


def test_detect():
    detect = entries()["recurrent-kernels"].detect
    seen = observation(
        models=(model(device="cuda:0", layers={"GRU": 2}),), device=device(8.0, kernels=(kernel("recurrent", 0.5),))
    )
    assert detect(seen).most == pytest.approx(0.4)
    assert detect(observation()) is None
