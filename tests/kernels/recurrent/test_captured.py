"""A training measures its recurrent layers before it captures its step, so that the capture holds the kernels."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import nn

from hotlap.catalog import entries
from hotlap.catalog.cuda_graphs.apply import Graphs
from hotlap.engine import nn as ours
from hotlap.engine.recurrent import Recurrent, use_kernels
from hotlap.kernels.recurrent import layer, measurement, modules, selection
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.runtime.root_discovery import RootDiscovery
from hotlap.runtime.site import Site
from tests.catalog import emulated_graphs
from tests.engine.tape import EmulatedRecorder
from tests.engine.training import Rows, fitted
from tests.kernels.recurrent.compared import BY

WINDOWS = torch.randn(40, 5, 3, generator=torch.Generator().manual_seed(0))
ROWS = Rows(WINDOWS, WINDOWS.sum((1, 2)).unsqueeze(1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent, self.head = Recurrent("lstm", 3, 4), nn.Linear(4, 1)
        use_kernels(self)

    def forward(self, window):
        return self.head(self.recurrent(window))


class Capturing(EmulatedRecorder):
    """A recorder that notes when it records."""

    def __init__(self, events):
        super().__init__()
        self.events, self.recording = events, False

    def capture(self, work):
        self.recording = True
        self.events.append("capture")
        try:
            return super().capture(work)
        finally:
            self.recording = False


@pytest.fixture
def gpu(monkeypatch, answering, tmp_path):
    """Treats layers as if on a GPU; an LSTM in plain torch stands in for kernels, which no recorder sees on a CPU."""
    events = []
    recorder = Capturing(events)

    def measured(key, device, only=()):
        assert not recorder.recording
        events.append(f"measured {key.batch}" + ("" if key.backward else " forward"))
        return {"cudnn": 2.0, BY: 0.5}

    def walked(shape, given, compiling):
        events.append("walk")
        (of_x, of_h, *biases), outputs = given.flat, []
        h = c = given.x.new_zeros(given.x.shape[1], shape.hidden)
        for x in given.x:
            i, f, g, o = (x @ of_x.t() + h @ of_h.t() + sum(biases)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs), h.unsqueeze(0), c.unsqueeze(0)

    answering(modules, _of_place=None)
    answering(selection, index_of=0, file_of=tmp_path / "choices.json")
    monkeypatch.setattr(measurement, "times", measured)
    monkeypatch.setattr(layer, "recurrent", walked)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recorder.recording)
    selection.forget()
    yield recorder
    selection.forget()


def test_a_training_measures_each_shape_before_its_capture_and_captures_the_winner(gpu, monkeypatch):
    """There are full batches of 16 and a last one of 8."""
    _, history = fitted(1, train=ROWS, valid=ROWS, recorder=gpu, monkeypatch=monkeypatch, model=Model, graph="on")
    assert history.mode == "one CUDA graph"
    for batch in (16, 8):
        before = gpu.events.index(f"measured {batch}")
        assert "capture" in gpu.events[before:]
        assert gpu.events.count(f"measured {batch}") == 1
    captures = [n for n, event in enumerate(gpu.events) if event == "capture"]
    assert len(captures) == 2
    assert all(gpu.events[n + 1] == "walk" for n in captures)


def test_the_captured_kernels_train_as_torchs_layers_do(gpu, monkeypatch):
    made, _ = fitted(2, train=ROWS, valid=ROWS, recorder=gpu, monkeypatch=monkeypatch, model=Model, graph="on")
    with selection.forced(selection.CUDNN):
        plain, _ = fitted(2, train=ROWS, valid=ROWS, model=Model, graph="off")
    for parameter, expected in zip(made.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-5)


def test_a_shape_first_seen_in_a_capture_uses_cudnn(gpu):
    model = Model()
    gpu.capture(lambda: model(WINDOWS))
    assert gpu.events == ["capture"]


def test_only_plain_layers_are_replaced():
    class Own(nn.LSTM):
        pass

    model = nn.ModuleList([nn.LSTM(3, 4), nn.GRU(3, 4), Own(3, 4), nn.LSTM(3, 4, proj_size=2), nn.RNN(3, 4)])
    before = model.state_dict()
    assert use_kernels(model) == 2
    assert [type(layer) for layer in model] == [ours.LSTM, ours.GRU, Own, nn.LSTM, nn.RNN]
    assert list(model.state_dict()) == list(before)


# An unmodified program under the entries of `hotlap run --with recurrent-kernels`


class Series(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, inputs):
        return self.head(self.lstm(inputs.view(-1, 3, 2))[0][:, -1])


@pytest.fixture
def at_work(gpu, answering):
    """Applies recurrent-kernels and then cuda-graphs, in the order of the plan."""
    swapping = importlib.import_module("hotlap.catalog.recurrent_kernels.apply")
    answering(swapping, on_gpu=True)
    every = entries()
    names = list(every)
    assert names.index("recurrent-kernels") < names.index("cuda-graphs")
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    moments = RootDiscovery(seams)
    sites = [Site(name, every[name], None, torch, seams, moments) for name in ("recurrent-kernels", "cuda-graphs")]
    swapping.apply(sites[0])

    class Recorder(emulated_graphs.EmulatedRecorder):
        def record_both(self, forward, backward, pool=None):
            gpu.recording = True
            gpu.events.append("capture")
            try:
                return super().record_both(forward, backward, pool)
            finally:
                gpu.recording = False

    graphs = Graphs(sites[1], Recorder())
    graphs.begin()
    yield sites
    for site in reversed(sites):
        site.close()
    seams.close()


def test_under_cuda_graphs_a_shape_is_measured_before_the_capture_and_the_kernels_are_captured(gpu, at_work):
    emulated_graphs.train(model=Series, optimizer=emulated_graphs.adamw)
    assert [site.outcome.status for site in at_work] == ["applied", "applied"]
    assert gpu.events.count("measured 5") == 1
    capture = gpu.events.index("capture")
    assert gpu.events.index("measured 5") < capture
    assert gpu.events[capture + 1] == "walk"
