"""Twins share the parameters' memory, replace them while forward is recorded, and leave nothing behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.catalog.cuda_graphs.twins import Twins
from hotlap.kernels.recurrent import probe
from hotlap.kernels.recurrent.key import Key
from tests.catalog.emulated_graphs import Net, adamw, at_work, same, sgd, train

graphs = pytest.fixture(at_work)
needs_counts = pytest.mark.skipif(
    not hasattr(torch._C, "_storage_Use_Count"),
    reason="this torch, old and built without CUDA, does not count who uses a storage",
)
KEY = Key("lstm", 3, 5, 2, 4, 1, 1, True, "float32", False, True)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, inputs):
        return self.second(self.first(inputs))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 4, num_layers=2, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, inputs):
        return self.head(self.lstm(inputs.unsqueeze(1))[0][:, -1])


@pytest.mark.parametrize("make", [Net, Tied, Recurrent])
def test_forward_and_gradients_equal_those_of_the_parameters(make):
    torch.manual_seed(0)
    net = make().eval()
    parameters, inputs = list(net.parameters()), torch.randn(3, 6)
    before = {id(child): dict(vars(child)) for child in net.modules()}
    plain = net(inputs)
    twins = Twins(net, parameters)
    with twins:
        output = net(inputs)
        assert not any(own is parameter for own in net.parameters() for parameter in parameters)
    assert torch.equal(output, plain)
    found = torch.autograd.grad(output.sum(), twins.tensors)
    assert same(found, torch.autograd.grad(plain.sum(), parameters))
    assert twins.are_true
    assert all(own is parameter for own, parameter in zip(net.parameters(), parameters, strict=True))
    for child in net.modules():
        assert all(vars(child)[name] is value for name, value in before[id(child)].items())


def test_twins_follow_the_parameters():
    net = Recurrent()
    twins = Twins(net, list(net.parameters()))
    with twins:
        net(torch.randn(3, 6))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1)
    assert same(twins.tensors, list(net.parameters()))


def test_notices_weights_that_were_moved():
    net = Net()
    twins = Twins(net, list(net.parameters()))
    net.first.weight.data = net.first.weight.data.clone()
    assert not twins.are_true


def test_a_recurrent_model_trains_as_without_graphs(graphs):
    plain = train(model=Recurrent, optimizer=adamw, clip=0.1)
    graphs.begin()
    assert same(train(model=Recurrent, optimizer=adamw, clip=0.1), plain)
    assert graphs.site.outcome.status == "applied"


class Choosing(Net):
    """The first call of a recurrent layer runs forward and backward several times to select a kernel."""

    def __init__(self):
        super().__init__()
        self.chosen = []

    def forward(self, inputs):
        if not self.chosen:
            self.chosen.append(KEY)
            probe.by_torch(KEY, *probe.made(KEY, "cpu"))
        return super().forward(inputs)


def test_kernel_selection_is_not_mistaken_for_a_backward_of_the_program(graphs):
    plain = train(model=Choosing)
    graphs.begin()
    assert same(train(model=Choosing), plain)
    assert graphs.site.outcome.status == "applied", graphs.site.outcome


KEPT = {
    "itself": lambda gradient: gradient,
    "detached": lambda gradient: gradient.detach(),
    "data": lambda gradient: gradient.data,
    "row": lambda gradient: gradient[0],
    "flat": lambda gradient: gradient.view(-1),
}


@needs_counts
@pytest.mark.parametrize("how", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("wanted", [range(100), (9,), (8, 9, 12)], ids=["all", "one", "some"])
def test_gradients_that_the_user_keeps_are_not_overwritten(how, wanted, graphs):
    def kept_gradients():
        gradients = []

        def around(number, net, optim):
            if number in wanted and net.last.weight.grad is not None:
                gradients.append(how(net.last.weight.grad))

        return [*train(around=around, optimizer=adamw), *gradients]

    plain = kept_gradients()
    graphs.begin()
    replayed = kept_gradients()
    assert graphs.site.outcome.status == "applied"
    assert len(replayed) == len(plain)
    assert same(replayed, plain)


@pytest.mark.parametrize("stays_alive", [False, True])
def test_a_model_trained_later_is_recorded_too(stays_alive, graphs):
    held = []

    def keep(number, net, optim):
        if stays_alive:
            held.append((net, optim))

    plain = train(), train(model=Recurrent)
    graphs.begin()
    assert same(train(around=keep), plain[0])
    replays = graphs.recorder.replays["forward"]
    assert replays > 10
    assert same(train(model=Recurrent, around=keep), plain[1])
    assert graphs.recorder.replays["forward"] > replays + 10
    assert "Recurrent" in graphs.site.outcome.why


def by_grad(net, loss):
    for parameter, gradient in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True):
        parameter.grad = gradient


def by_hook(net, loss):
    handle = net.first.weight.register_hook(lambda gradient: None)
    loss.backward()
    handle.remove()


OTHER_WAYS = {
    "grad": by_grad,
    "hook": by_hook,
    "inputs": lambda net, loss: loss.backward(inputs=[net.last.weight]),
    "retained": lambda net, loss: loss.backward(retain_graph=True),
}


@needs_counts
@pytest.mark.parametrize("zeroed", [True, False])
@pytest.mark.parametrize("way", OTHER_WAYS.values(), ids=OTHER_WAYS)
def test_a_backward_of_another_kind_corrupts_no_gradient(way, zeroed, graphs):
    """This holds for a gradient kept from the previous step and for gradients that were not dropped before it."""

    def trained():
        torch.manual_seed(0)
        net = Net()
        optimizer, seen = sgd(net.parameters()), []
        for number in range(16):
            if zeroed or number != 13:
                optimizer.zero_grad()
            loss = net(torch.randn(5, 6)).square().mean()
            if number == 13:
                way(net, loss)
            else:
                loss.backward()
            if number in (12, 13):
                seen += [parameter.grad for parameter in net.parameters()]
            if number == 13:
                seen += [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
            optimizer.step()
        return [*(gradient for gradient in seen if gradient is not None), *net.state_dict().values()]

    plain = trained()
    graphs.begin()
    assert same(trained(), plain)
    assert graphs.site.outcome.status == "applied", graphs.site.outcome


def test_recording_spares_a_forward_still_waiting_for_its_backward(graphs):
    """BatchNorm has saved buffers for its backward, and recording restores buffers."""

    def trained():
        torch.manual_seed(0)
        net = Net()
        optimizer = sgd(net.parameters())
        for number in range(10):
            optimizer.zero_grad()
            inputs = torch.randn(5, 6)
            loss = net(inputs).square().mean()
            if number >= 3:
                loss = loss + net(inputs + 1).square().mean()
            loss.backward()
            optimizer.step()
        return list(net.state_dict().values())

    plain = trained()
    graphs.begin()
    assert same(trained(), plain)
