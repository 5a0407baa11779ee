"""Graphs and hooks: those of weight_norm are replayed, and any other is called, whenever the program registers it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from tests.catalog.emulated_graphs import Net, at_work, same, sgd, train

graphs = pytest.fixture(at_work)


def weight_normed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        net = Net(dropout=0.2)
        nn.utils.weight_norm(net.first)
        nn.utils.weight_norm(net.last, dim=None)
    return net


def read_weights(seen):
    return lambda number, net, _: seen.append(net.first.weight.detach().clone())


def penalised():
    """Trains with a loss that also depends on a weight which the hook computes."""
    torch.manual_seed(0)
    net = weight_normed()
    optim = sgd(net.parameters())
    seen = []
    for _ in range(16):
        loss = net(torch.randn(5, 6)).square().mean() + net.first.weight.square().sum()
        optim.zero_grad()
        loss.backward()
        optim.step()
        seen.append(loss.detach())
    return [*seen, *net.state_dict().values()]


def test_weight_norm_is_replayed_with_the_same_numbers(graphs):
    seen, plain = [], train(model=weight_normed)
    read_plain = []
    train(model=weight_normed, around=read_weights(read_plain), evaluate=True)
    graphs.begin()
    assert same(train(model=weight_normed), plain)
    assert graphs.site.outcome.status == "applied", graphs.site.outcome
    assert graphs.recorder.replays["forward"] > 10
    train(model=weight_normed, around=read_weights(seen), evaluate=True)
    assert same(seen, read_plain)


def test_a_loss_may_depend_on_a_weight_that_weight_norm_computes(graphs):
    """Its two gradients are added after the hook's backward and not before, so rounding differs."""
    plain = penalised()
    graphs.begin()
    torch.testing.assert_close(penalised(), plain, rtol=1e-4, atol=1e-5)
    assert graphs.recorder.replays["forward"] > 10


def test_a_hook_registered_during_training_is_called(graphs):
    def trained():
        called = []

        def around(number, net, _):
            if number == 12:
                net.last.register_forward_hook(lambda *_: called.append(number))

        return train(around=around), len(called)

    plain, calls = trained()
    graphs.begin()
    losses, replayed_calls = trained()
    assert graphs.recorder.replays["forward"] > 5
    assert same(losses, plain)
    assert replayed_calls == calls


def test_hooks_on_other_modules_do_not_end_replays(graphs):
    def around(number, net, _):
        nn.Linear(1, 1).register_forward_hook(lambda *_: None)

    plain = train(around=around)
    graphs.begin()
    assert same(train(around=around), plain)
    assert graphs.recorder.replays["forward"] > 15


def test_a_weight_norm_on_the_root_itself_is_refused(graphs):
    def root():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return nn.utils.weight_norm(nn.Linear(6, 2))

    plain = train(model=root)
    graphs.begin()
    assert same(train(model=root), plain)
    assert "has hooks" in graphs.site.outcome.why
