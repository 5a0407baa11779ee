"""The root's parameters are known without a walk through its modules, but only where that walk would give the same."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from hotlap.catalog.cuda_graphs.parameter_list import ParameterList
from tests.catalog.emulated_graphs import Net, at_work, same, train

graphs = pytest.fixture(at_work)


def test_returns_what_parameters_yields_and_exhausts_the_generator():
    net = Net()
    given = net.parameters()
    found = ParameterList(torch, net).of(given, net)
    assert found is not None
    assert all(parameter is expected for parameter, expected in zip(found, Net.parameters(net), strict=True))
    assert list(given) == []
    assert inspect.getgeneratorstate(given) == inspect.GEN_CLOSED


def test_other_parameter_generators_are_left_to_the_caller():
    net, other = Net(), Net()
    partly_read = net.parameters()
    next(partly_read)
    left = (
        partly_read,
        net.parameters(recurse=False),
        net.first.parameters(),
        other.parameters(),
        list(net.parameters()),
    )
    expected = [5, 0, 2, 6, 6]
    listed = ParameterList(torch, net)
    assert [listed.of(given, net) for given in left] == [None] * 5
    assert [len(list(given)) for given in left] == expected


def test_modules_that_override_named_parameters_are_respected():
    class Partly(nn.Linear):
        def named_parameters(self, *args, **kwargs):
            return (pair for pair in super().named_parameters(*args, **kwargs) if pair[0] != "bias")

    net = Partly(2, 2)
    assert ParameterList(torch, net).of(net.parameters(), net) is None


def test_a_parameter_added_later_is_clipped_too(graphs):
    """The module had no parameters; the new one takes no part in the loss, but the user gives it a gradient."""

    def later(number, net, optim):
        if number == 12:
            net.register_parameter("late", nn.Parameter(torch.ones(3)))
        if number >= 12:
            net.late.grad = torch.full((3,), 5.0)

    plain = train(around=later, clip=0.1)
    graphs.begin()
    assert same(train(around=later, clip=0.1), plain)
    assert graphs.recorder.replays["forward"] > 3
