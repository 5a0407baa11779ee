"""On a GPU, losses are replayed with their gradients to the bit, also when one model is trained after another."""

from __future__ import annotations

import pytest
import torch
from test_cuda_graphs import Net, Recurrent, adamw, mlp, repeatable, same, sgd
from torch import nn
from torch.nn import functional

import hotlap

pytestmark = pytest.mark.cuda
__all__ = ["repeatable"]  # the fixture


def mean_square(outputs, targets):
    return functional.mse_loss(outputs, targets)


def huber(outputs, targets):
    return nn.HuberLoss(delta=0.5)(outputs, targets)


def classes(outputs, targets):
    return functional.cross_entropy(outputs, targets.argmax(1), label_smoothing=0.1)


def logits(outputs, targets):
    return nn.BCEWithLogitsLoss()(outputs, (targets > 0).float())


def plainly(loss):
    loss.backward()


def twice_as_much(loss):
    (2 * loss).backward()


def with_a_gradient(loss):
    loss.backward(torch.tensor(0.5, device="cuda"))


def retaining(loss):
    loss.backward(retain_graph=True)


def train(model=mlp, loss_of=mean_square, backward=plainly, optimizer=adamw, steps=24, autocast=False):
    """Train with a smaller last batch, and read the loss at every step as most programs do."""
    torch.manual_seed(0)
    net = model().cuda()
    optim = optimizer(net.parameters())
    seen = []
    for number in range(steps):
        rows = 9 if number == steps - 1 else 16
        inputs, targets = torch.randn(rows, 48).cuda(), torch.randn(rows, 10).cuda()
        optim.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            outputs = net(inputs)
            loss = loss_of(outputs, targets)
        backward(loss)
        seen += [torch.tensor(loss.item()), outputs.detach().cpu()]
        seen += [parameter.grad.cpu() for parameter in net.parameters()]
        optim.step()
    return [tensor.cpu() for tensor in [*seen, *net.state_dict().values(), torch.rand(2, device="cuda")]]


@pytest.fixture
def backwards(monkeypatch):
    """A list that grows by one with every run of autograd's engine that accumulates into `.grad`."""
    calls = []
    engine = torch.autograd.graph._engine_run_backward

    def counted(*args, **kwargs):
        if kwargs["accumulate_grad"]:
            calls.append(1)
        return engine(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", counted)
    return calls


@pytest.mark.parametrize("loss_of", [mean_square, huber, classes, logits])
@pytest.mark.parametrize("model", [mlp, lambda: Net(0.5), Recurrent])
def test_a_plain_backward_is_the_same_to_the_bit_and_needs_no_engine(model, loss_of, backwards):
    plain = train(model, loss_of)
    assert same(train(model, loss_of), plain), "eager training does not repeat itself: this test shows nothing"
    backwards.clear()
    with hotlap.enable(None, with_=["cuda-graphs"]) as enabled:
        replayed = train(model, loss_of)
        (outcome,) = enabled.outcomes
    assert same(replayed, plain)
    assert outcome.status == "applied", outcome
    assert "and of" in outcome.why, outcome
    assert len(backwards) <= 8, "only the steps before it was recorded, and the smaller batch"


@pytest.mark.parametrize(
    ("backward", "status"), [(twice_as_much, "applied"), (with_a_gradient, "applied"), (retaining, "refused")]
)
def test_another_use_of_the_loss_is_the_same_to_the_bit(backward, status):
    plain = train(backward=backward)
    with hotlap.enable(None, with_=["cuda-graphs"]) as enabled:
        assert same(train(backward=backward), plain)
        assert enabled.outcomes[0].status == status


def test_losses_under_autocast_are_bit_exact():
    plain = train(Net, classes, autocast=True)
    with hotlap.enable(None, with_=["cuda-graphs"]) as enabled:
        assert same(train(Net, classes, autocast=True), plain)
        assert enabled.outcomes[0].status == "applied"


def test_accumulated_gradients_are_bit_exact():
    def run():
        torch.manual_seed(0)
        net = mlp().cuda()
        optim = sgd(net.parameters())
        seen = []
        for number in range(24):
            loss = mean_square(net(torch.randn(16, 48).cuda()), torch.ones(16, 10, device="cuda"))
            loss.backward()
            seen.append(loss.detach().cpu())
            if number % 3 == 2:
                optim.step()
                optim.zero_grad()
        return [*seen, *(parameter.detach().cpu() for parameter in net.parameters())]

    plain = run()
    with hotlap.enable(None, with_=["cuda-graphs"]) as enabled:
        assert same(run(), plain)
        assert enabled.outcomes[0].status == "applied"


@pytest.mark.parametrize("model", [mlp, lambda: Net(0.5), Recurrent])
@pytest.mark.parametrize("loss_of", [mean_square, classes])
def test_gradients_keep_their_values_until_the_next_backward(model, loss_of):
    """Programs clear or read gradients after the next forward, or add to them over several backwards."""

    def run():
        torch.manual_seed(0)
        net = model().cuda()
        optim = sgd(net.parameters())
        seen = []
        for number in range(30):
            loss = loss_of(net(torch.randn(16, 48).cuda()), torch.randn(16, 10).cuda())
            seen += [parameter.grad.cpu() for parameter in net.parameters() if parameter.grad is not None]
            if number % 4 == 0:
                optim.zero_grad(set_to_none=number % 8 == 0)
            loss.backward()
            optim.step()
        return [*seen, *(parameter.detach().cpu() for parameter in net.parameters())]

    plain = run()
    with hotlap.enable(None, with_=["cuda-graphs"]) as enabled:
        assert same(run(), plain)
        assert enabled.outcomes[0].status == "applied"


def test_a_model_trained_after_another_is_replayed_too(backwards):
    plain = train(mlp) + train(Net)
    backwards.clear()
    with hotlap.enable(None, with_=["cuda-graphs"]) as enabled:
        assert same(train(mlp) + train(Net), plain)
        assert enabled.outcomes[0].status == "applied"
    assert len(backwards) <= 16


def test_a_loss_that_is_kept_does_not_change_with_later_steps():
    def run():
        torch.manual_seed(0)
        net = mlp().cuda()
        optim = sgd(net.parameters())
        losses = []
        for _ in range(20):
            optim.zero_grad()
            loss = mean_square(net(torch.randn(16, 48).cuda()), torch.ones(16, 10, device="cuda"))
            loss.backward()
            optim.step()
            losses.append(loss)
        return [loss.detach().cpu() for loss in losses]

    plain = run()
    with hotlap.enable(None, with_=["cuda-graphs"]):
        assert same(run(), plain)


def test_the_losses_of_two_heads_are_bit_exact():
    def run():
        torch.manual_seed(0)
        net = mlp().cuda()
        optim = adamw(net.parameters())
        seen = []
        for _ in range(20):
            optim.zero_grad()
            outputs = net(torch.randn(16, 48).cuda())
            first, second = outputs[:, :5].square().mean(), functional.l1_loss(outputs[:, 5:], torch.ones(16, 5).cuda())
            (first + 0.3 * second).backward()
            optim.step()
            seen += [first.detach(), second.detach()]
        return [tensor.cpu() for tensor in [*seen, *net.state_dict().values()]]

    plain = run()
    with hotlap.enable(None, with_=["cuda-graphs"]) as enabled:
        assert same(run(), plain)
        assert enabled.outcomes[0].status == "applied"
