"""A loss is replayed with its derivative, and training stays identical to the bit whatever the program does with it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.catalog.emulated_graphs import Net, adamw, at_work, same

graphs = pytest.fixture(at_work)


def mean_square(outputs, number):
    return functional.mse_loss(outputs, torch.full_like(outputs, number / 10).detach())


def classes(outputs, number):
    weight = torch.tensor([0.5, 2.0])
    return functional.cross_entropy(outputs, torch.arange(5) % 2, weight=weight, label_smoothing=0.1)


def logits(outputs, number):
    return nn.BCEWithLogitsLoss()(outputs, torch.full((5, 2), number % 2 / 1.0))


def train(loss_of=mean_square, backward=torch.Tensor.backward, around=None, optimizer=adamw, steps=12):
    torch.manual_seed(0)
    net = Net(0.2)
    optim = optimizer(net.parameters())
    seen = []
    for number in range(steps):
        optim.zero_grad()
        outputs = net(torch.randn(5, 6))
        if around:
            around(number, net, outputs)
        loss = loss_of(outputs, number)
        backward(loss)
        seen += [loss.detach(), outputs.detach(), *(parameter.grad.clone() for parameter in net.parameters())]
        optim.step()
    return [*seen, *net.state_dict().values(), torch.rand(2)]


@pytest.mark.parametrize("loss_of", [mean_square, classes, logits])
def test_the_plain_backward_needs_no_engine(loss_of, graphs, spied):
    plain = train(loss_of)
    graphs.begin()
    backwards = spied(torch.autograd, "_engine_run_backward")
    assert same(train(loss_of), plain)
    assert "and of" in graphs.site.outcome.why
    assert graphs.losses.why_not is None
    assert graphs.recorder.replays["backward"] >= 8
    # torch.autograd.grad, which the emulation uses, does not accumulate
    own = sum(call.kwargs["accumulate_grad"] for call in backwards)
    assert own <= 6, "only the steps before it was recorded"


def twice_as_much(loss):
    (2 * loss).backward()


def with_a_penalty(loss):
    (loss + 0.0 * loss.detach()).backward()


def with_a_gradient(loss):
    loss.backward(torch.tensor(0.5))


@pytest.mark.parametrize("backward", [twice_as_much, with_a_penalty])
def test_a_loss_used_in_another_way_goes_through_autograd_from_then_on(backward, graphs):
    plain = train(backward=backward)
    graphs.begin()
    assert same(train(backward=backward), plain)
    assert "not differentiated directly" in graphs.losses.why_not
    assert graphs.site.outcome.status == "applied"


def test_uses_a_gradient_passed_to_backward(graphs):
    plain = train(backward=with_a_gradient)
    graphs.begin()
    assert same(train(backward=with_a_gradient), plain)


def test_hooks_on_the_output_are_called(graphs):
    def run():
        seen = []

        def around(number, net, outputs):
            if number > 6:
                outputs.register_hook(lambda gradient: seen.append(gradient.clone()))

        return [*train(around=around), *seen]

    plain = run()
    graphs.begin()
    assert same(run(), plain)


def test_hooks_on_the_loss_are_called(graphs):
    def run():
        seen = []

        def backward(loss):
            loss.register_hook(lambda gradient: seen.append(gradient.clone()))
            loss.backward()

        return [*train(backward=backward), *seen]

    plain = run()
    graphs.begin()
    assert same(run(), plain)


def test_does_not_replay_a_loss_of_a_modified_output(graphs):
    def around(number, net, outputs):
        with torch.no_grad():
            outputs.mul_(2)

    plain = train(around=around)
    graphs.begin()
    assert same(train(around=around), plain)
    assert "and of" not in graphs.site.outcome.why


def test_does_not_replay_a_target_of_another_kind(graphs):
    def loss_of(outputs, number):
        target = torch.arange(10.0).reshape(5, 2) if number % 4 else torch.arange(10.0).reshape(2, 5).T
        return functional.mse_loss(outputs, target)

    plain = train(loss_of)
    graphs.begin()
    assert same(train(loss_of), plain)


def test_a_loss_with_several_elements_is_left_alone(graphs):
    def loss_of(outputs, number):
        return functional.mse_loss(outputs, torch.ones(5, 2), reduction="none").sum()

    plain = train(loss_of)
    graphs.begin()
    assert same(train(loss_of), plain)
    assert graphs.losses.why_not == "it is not a single number that depends on the output"


def test_a_second_backward_names_the_flag_to_use(graphs):
    def backward(loss):
        loss.backward()
        if len(steps) > 8:
            loss.backward()
        steps.append(1)

    steps = []
    graphs.begin()
    with pytest.raises(RuntimeError, match="--without cuda-graphs"):
        train(backward=backward)


def test_losses_without_gradients_are_left_alone(graphs):
    def loss_of(outputs, number):
        with torch.no_grad():
            functional.mse_loss(outputs, torch.ones(5, 2))
        return mean_square(outputs, number)

    plain = train(loss_of)
    graphs.begin()
    assert same(train(loss_of), plain)
