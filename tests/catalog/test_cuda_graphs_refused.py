"""CUDA graphs refuse models and loops that a replay would train differently, and workers that would crash."""

from __future__ import annotations

import itertools
import logging
import random
import time

import pytest
import torch
from torch import nn

from tests.catalog.emulated_graphs import Net, at_work, same, sgd, train

graphs = pytest.fixture(at_work)


class Settings:
    scale = 1.0


class Logging(Net):
    def forward(self, inputs):
        logging.getLogger("of a model").warning("it was called")
        return super().forward(inputs)


class Changing(Net):
    def forward(self, inputs):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(inputs)


class Setting(Net):
    """It sets an attribute of something else than a module."""

    def forward(self, inputs):
        settings = Settings
        settings.scale = 1.0
        return super().forward(inputs) * settings.scale


class Drawing(Net):
    def forward(self, inputs):
        return super().forward(inputs) * (1 + random.random())


class Writing(Net):
    def forward(self, inputs):
        return super().forward(inputs.mul_(2))


class Keeping(Net):
    def forward(self, inputs):
        self.features = self.first(inputs)
        return self.last(self.features)


class Sparse(Net):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 2, sparse=True)

    def forward(self, inputs):
        return super().forward(inputs) + self.table(torch.zeros(5, dtype=torch.long))


class Hooked(Net):
    def __init__(self):
        super().__init__()
        self.first.register_forward_hook(lambda *_: None)


class GradientHook(Net):
    def __init__(self):
        super().__init__()
        self.first.weight.register_hook(lambda gradient: gradient)


class RecurrentDropout(Net):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 8, num_layers=2, dropout=0.5)


class Printing(Net):
    def forward(self, inputs):
        print("it was called")
        return super().forward(inputs)


class Timing(Net):
    def forward(self, inputs):
        return super().forward(inputs) * (2.0 if time.time() < 0 else 1.0)


class Appending(Net):
    def forward(self, inputs):
        SEEN.append(len(inputs))
        return super().forward(inputs)


class Counting(Net):
    """The model counts its calls in ways that its code does not reveal beforehand."""

    def __init__(self):
        super().__init__()
        self.counts, self.names = {"calls": 0}, []

    def forward(self, inputs):
        self.__dict__["total"] = getattr(self, "total", 0) + 1
        self.counts["calls"] += 1
        self.names.append(self.counts["calls"])
        return super().forward(inputs)


SEEN: list[int] = []

REFUSED = {
    Printing: "forward prints or writes a log",
    Logging: "forward prints or writes a log",
    Timing: "Timing.forward reads the clock",
    Appending: "forward changes a list or dictionary",
    RecurrentDropout: "dropout between recurrent layers",
    Changing: "forward changes the attribute calls",
    Keeping: "forward changes the attribute features",
    Setting: "Setting.forward sets scale",
    Counting: "changes the attribute total",
    Drawing: "draws random numbers",
    Writing: "writes into its inputs",
    Sparse: "sparse",
    Hooked: "has hooks",
    GradientHook: "gradient hooks",
}


@pytest.mark.parametrize("model", REFUSED)
def test_refuses_a_model_that_cannot_be_replayed_and_trains_on(model, graphs):
    def around(number, net, _):
        counted.append([number, getattr(net, "total", 0), list(getattr(net, "names", [])), len(SEEN)])

    counted = []
    random.seed(0)
    SEEN.clear()
    plain = train(model=model, steps=8, around=around), random.random()
    expected, counted = counted, []
    random.seed(0)
    SEEN.clear()
    graphs.begin()
    replayed = train(model=model, steps=8, around=around), random.random()
    assert counted == expected
    assert same(replayed[0], plain[0])
    assert replayed[1] == plain[1]
    assert graphs.site.outcome.status == "refused"
    assert REFUSED[model] in graphs.site.outcome.why
    assert graphs.recorder.replays["forward"] == 0


SETTINGS, FACTOR = Settings(), 1.0


class ReadsSettings(Net):
    """The model reads settings in every place where a program may keep them."""

    gain = 1.0

    def __init__(self):
        super().__init__()
        self.options = {"offset": 0.0}

    def forward(self, inputs):
        return super().forward(inputs) * (SETTINGS.scale * FACTOR * self.gain) + self.options["offset"]


def change_settings(number, net, _):
    """Changes another setting every seven steps; setting an equal number is no change."""
    global FACTOR
    SETTINGS.scale = 1.0 if number < 7 else float("0.5")
    FACTOR = 1.0 if number < 14 else 0.9
    net.options["offset"] = 0.0 if number < 21 else 0.5
    net.dropout.p = 0.0 if number < 28 else 0.25
    ReadsSettings.gain = 1.0 if number < 35 else 0.5


def test_a_changed_setting_discards_its_recordings(graphs):
    steps = 42
    plain = train(model=ReadsSettings, steps=steps, around=change_settings)
    graphs.begin()
    seen = []

    def around(number, net, optim):
        change_settings(number, net, optim)
        seen.append(graphs.recorder.replays["forward"])

    assert same(train(model=ReadsSettings, steps=steps, around=around), plain)
    replayed = [after > before for before, after in itertools.pairwise(seen)]
    assert not any(replayed[number] for number in (7, 14, 21, 28, 35))
    assert replayed[6]
    assert replayed[12]


class Basic(Net):
    gain = 1.0

    def between(self, outputs):
        return outputs * self.gain

    def forward(self, inputs):
        return self.between(super().forward(inputs))


class Derived(Basic):
    """The model inherits everything its forward reads."""


def gain_of_its_own(net):
    net.gain = 0.5


def gain_of_its_class(_):
    Derived.gain = 0.5


def method_of_its_own(net):
    net.between = lambda outputs: outputs * 0.5


def method_of_its_class(_):
    Derived.between = lambda self, outputs: outputs * 0.5


def child_with_another_forward(net):
    net.dropout.forward = lambda inputs: inputs * 0.5


HIDING = (gain_of_its_own, gain_of_its_class, method_of_its_own, method_of_its_class, child_with_another_forward)


@pytest.mark.parametrize("hide", HIDING, ids=lambda hide: hide.__name__)
def test_a_name_that_shadows_another_discards_its_recordings(hide, graphs):
    seen = []

    def around(number, net, _):
        seen.append(graphs.recorder.replays["forward"])
        if number == 9:
            hide(net)

    def trained():
        for name in ("gain", "between"):
            if name in vars(Derived):
                delattr(Derived, name)
        return train(model=Derived, steps=20, around=around)

    plain = trained()
    seen.clear()
    graphs.begin()
    assert same(trained(), plain)
    assert seen[9] > seen[8] > 0
    assert seen[10] == seen[9]  # the following step


def test_does_not_record_inputs_at_varying_storage_offsets(graphs):
    graphs.begin()
    rows = torch.randn(40, 6)

    def trained():
        torch.manual_seed(0)
        net = Net()
        optim = sgd(net.parameters())
        for number in range(8):
            optim.zero_grad()
            net(rows[2 * number + 1 : 2 * number + 6]).square().mean().backward()
            optim.step()

    trained()
    assert graphs.recorder.replays["forward"] == 0


class Rounding(torch.autograd.Function):
    """The gradient is rounding noise that differs each time, as when a zero is summed in another order."""

    size, calls = 1e-10, 0

    @staticmethod
    def forward(ctx, bias):
        return bias * 0

    @staticmethod
    def backward(ctx, upstream):
        Rounding.calls += 1
        return torch.full((2,), Rounding.size * Rounding.calls)


class BiasOfKeys(Net):
    """The bias moves all scores of a softmax alike, so mathematically it has no gradient."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, inputs):
        return super().forward(inputs) + Rounding.apply(self.bias)


@pytest.mark.parametrize("size", [1e-10, 1e-3])
def test_accepts_a_gradient_that_is_noise_in_the_model_itself(size, graphs, monkeypatch):
    monkeypatch.setattr(Rounding, "size", size)
    graphs.begin()
    train(model=BiasOfKeys, steps=24)
    assert graphs.site.outcome.status == "applied", graphs.site.outcome


@pytest.mark.parametrize("model", [Net, BiasOfKeys])
def test_refuses_a_replay_that_is_further_off_than_the_model_from_itself(model, graphs):
    graphs.recorder.off = 0.1
    plain = train(model=model, steps=24)
    Rounding.calls = 0
    graphs.begin()
    replayed = train(model=model, steps=24)
    assert graphs.site.outcome.status == "refused"
    assert "different results" in graphs.site.outcome.why
    assert graphs.recorder.replays["forward"] <= 1
    if model is Net:
        assert same(replayed, plain)
