"""The root's parameters, known without a walk through its modules: only where that walk would give the same."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from hotlap.catalog.cuda_graphs.parameter_list import ParameterList
from tests.catalog.emulated_graphs import Net, at_work, same, train

graphs = pytest.fixture(at_work)


def test_what_parameters_gives_and_the_generator_is_read_to_its_end():
    net = Net()
    given = net.parameters()
    found = ParameterList(torch, net).of(given, net)
    assert found is not None
    assert all(one is other for one, other in zip(found, Net.parameters(net), strict=True))
    assert list(given) == []
    assert inspect.getgeneratorstate(given) == inspect.GEN_CLOSED


def test_a_generator_begun_of_a_part_or_of_another_module_is_left_to_the_caller():
    net, other = Net(), Net()
    begun = net.parameters()
    next(begun)
    left = (begun, net.parameters(recurse=False), net.first.parameters(), other.parameters(), list(net.parameters()))
    expected = [5, 0, 2, 6, 6]
    listed = ParameterList(torch, net)
    assert [listed.of(given, net) for given in left] == [None] * 5
    assert [len(list(given)) for given in left] == expected


def test_modules_with_a_walk_of_their_own_are_walked():
    class Partly(nn.Linear):
        def named_parameters(self, *args, **kwargs):
            return (pair for pair in super().named_parameters(*args, **kwargs) if pair[0] != "bias")

    net = Partly(2, 2)
    assert ParameterList(torch, net).of(net.parameters(), net) is None


def test_a_parameter_that_comes_later_is_clipped_too(graphs):
    """To a module that had none of its own: it has no part in the loss, but a gradient of the user's."""

    def later(number, net, optim):
        if number == 12:
            net.register_parameter("late", nn.Parameter(torch.ones(3)))
        if number >= 12:
            net.late.grad = torch.full((3,), 5.0)

    plain = train(around=later, clip=0.1)
    graphs.begin()
    assert same(train(around=later, clip=0.1), plain)
    assert graphs.recorder.replays["forward"] > 3
