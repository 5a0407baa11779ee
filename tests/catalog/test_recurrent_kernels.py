"""recurrent-kernels redirects calls of recurrent layers; the layers stay unchanged."""

import importlib
import io
import threading
import time

import pytest
import torch
from catalog.compute_models import ROWS, SERIES, Recurrent, mlp, train
from observations import device, kernel, model, observation
from torch import nn

from hotlap.catalog import entries
from hotlap.kernels.recurrent import direct, modules, selection
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.runtime.root_discovery import RootDiscovery
from hotlap.runtime.site import Site
from tests.kernels.recurrent import emulating
from tests.kernels.recurrent.compared import BY

swapping = importlib.import_module("hotlap.catalog.recurrent_kernels.apply")
preparing = importlib.import_module("hotlap.catalog.recurrent_kernels.ahead")


def wait_until(is_so, seconds=60):
    ends = time.monotonic() + seconds
    while not is_so() and time.monotonic() < ends:
        time.sleep(0.01)


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
def as_if_on_a_gpu(monkeypatch, answering):
    """Layers count as on a GPU, whose kernels run on the CPU, thread by thread."""
    answering(swapping, on_gpu=True)
    walked = []

    forward = direct.forward
    monkeypatch.setattr(direct, "forward", lambda *given: walked.append(given[0].shape.kind) or forward(*given))
    emulating.on_cpu(monkeypatch)
    with selection.forced(BY):
        yield walked


def test_layers_use_the_kernels_and_train_alike(site, as_if_on_a_gpu):
    with selection.forced("cudnn"):  # torch's own path
        expected, _, _, _ = train(Recurrent, SERIES, steps=8)
    assert as_if_on_a_gpu == []
    losses, module, _, _ = train(Recurrent, SERIES, steps=8)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert site.outcome.status == "applied"
    assert site.outcome.why == "1 of 1 recurrent layers, each run the fastest way for its shape"
    assert len(as_if_on_a_gpu) >= 5  # once the root is known
    assert type(module.lstm) is nn.LSTM
    assert "forward" not in vars(module.lstm)


def test_kernels_are_compiled_once_a_layer_trains(monkeypatch):
    """They begin with the shape of the first training call; the layers are then torch's own again."""
    seams = Seams(torch, Guard(strict=True))
    made = Site("recurrent-kernels", entries()["recurrent-kernels"].code, None, torch, seams, RootDiscovery(seams))
    compiled, goes_on = [], threading.Event()
    monkeypatch.setattr(preparing, "on_gpu", lambda _: True)
    monkeypatch.setattr(modules, "_of_place", lambda *_: None)
    monkeypatch.setattr(
        selection, "compilations", lambda key, _: [lambda: goes_on.wait(60), lambda: compiled.append(key.hidden)]
    )
    before = dict(vars(nn.LSTM))
    preparing.ahead(made)
    layer, series = nn.LSTM(3, 5), torch.randn(4, 2, 3)
    with torch.no_grad():
        layer(series)
    layer.eval()(series)
    assert not made.coming
    layer.train()(series)
    assert made.coming
    assert vars(nn.LSTM) == before
    goes_on.set()
    wait_until(lambda: not made.coming)
    assert compiled == [5]


def test_only_layers_of_a_root_use_the_kernels(site, as_if_on_a_gpu):
    train(Recurrent, SERIES, steps=4)
    as_if_on_a_gpu.clear()
    nn.LSTM(3, 5)(torch.randn(4, 2, 3))
    assert as_if_on_a_gpu == []


def test_a_saved_model_contains_only_torch_classes(site, as_if_on_a_gpu):
    _, module, _, _ = train(Recurrent, SERIES, steps=4)
    saved = io.BytesIO()
    torch.save(module.lstm, saved)
    assert b"hotlap" not in saved.getvalue()


def test_closing_restores_torchs_forward(site, as_if_on_a_gpu):
    before = dict(vars(nn.LSTM))
    train(Recurrent, SERIES, steps=4)
    site.close()
    assert vars(nn.LSTM) == before
    as_if_on_a_gpu.clear()
    train(Recurrent, SERIES, steps=4)
    assert as_if_on_a_gpu == []


def test_has_no_effect_on_a_cpu(site):
    train(Recurrent, SERIES, steps=4)
    assert (site.outcome.status, site.outcome.why) == ("no effect", "its recurrent layers are not on a GPU")


def test_has_no_effect_on_models_without_recurrent_layers(site):
    train(mlp, ROWS, steps=4)
    assert site.outcome.why == "the model has no LSTM or GRU"


def test_layers_with_projections_or_a_custom_forward_are_left_alone(site, as_if_on_a_gpu):
    class Own(nn.LSTM):
        def forward(self, x, hx=None):
            return super().forward(x, hx)

    assert swapping.why_none([Own(3, 4)]) == "its recurrent layers have projections or a custom forward"


class Dropping(Recurrent):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(self.lstm.input_size, self.lstm.hidden_size, 2, batch_first=True, dropout=0.5)


def test_layers_that_draw_random_numbers_are_left_alone(site, as_if_on_a_gpu):
    """The kernels would draw other numbers than cuDNN, which is more than rounding."""
    train(Dropping, SERIES, steps=4)
    assert as_if_on_a_gpu == []
    assert site.outcome.status == "no effect"
    assert "would draw different random numbers" in site.outcome.why


def test_estimates_its_gain():
    detect = entries()["recurrent-kernels"].detect
    seen = observation(
        models=(model(device="cuda:0", layers={"GRU": 2}),), device=device(8.0, kernels=(kernel("recurrent", 0.5),))
    )
    assert detect(seen).most == pytest.approx(0.4)
    assert detect(observation()) is None
