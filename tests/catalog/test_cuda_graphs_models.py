"""Graphs replay several models, several optimizers and several forwards before one backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.catalog.emulated_graphs import Net, adam, at_work, same, sgd

EPOCHS = 14


@pytest.fixture
def graphs():
    yield from at_work()


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6))

    def forward(self, noise):
        return self.layers(noise)


class Judge(nn.Module):
    """The model has two heads, like a discriminator that also predicts classes."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.real, self.kind = nn.Linear(8, 1), nn.Linear(8, 3)

    def forward(self, rows):
        found = self.norm(self.first(rows)).relu()
        return self.real(found), self.kind(found)


def adversaries(optimizer=adam, critics=1, freeze=False, apart=False, device="cpu", epochs=EPOCHS):
    """Returns all that a program sees of two models that train against each other."""
    torch.manual_seed(0)
    maker, judge = Generator().to(device), Judge().to(device)
    of_maker, of_judge = optimizer(maker.parameters()), optimizer(judge.parameters())
    seen = []
    for step in range(epochs):
        rows = torch.randn(5, 6).to(device)
        judge.requires_grad_(not freeze)
        of_maker.zero_grad()
        made = maker(torch.randn(5, 4).to(device))
        real, kind = judge(made)
        loss = -real.mean() + kind.square().mean()
        loss.backward()
        of_maker.step()
        judge.requires_grad_(True)
        for _ in range(critics):
            of_judge.zero_grad()
            true, false = judge(rows), judge(made.detach())
            if apart:
                true[0].mean().backward()
                false[0].mean().neg().backward()
                judge_loss = true[0].mean()
            else:
                judge_loss = true[0].mean() - false[0].mean() + true[1].square().mean()
                judge_loss.backward()
            of_judge.step()
        seen += [loss.detach(), judge_loss.detach(), made.detach().clone()]
        if step % 5 == 4:
            judge.eval()
            seen.append(judge(rows)[0].detach())
            judge.train()
    return [*seen, *maker.state_dict().values(), *judge.state_dict().values(), torch.rand(3)]


@pytest.mark.parametrize(
    "ways", [{}, {"critics": 3}, {"freeze": True}, {"apart": True}, {"optimizer": sgd}, {"critics": 2, "freeze": True}]
)
def test_adversarial_training_gives_the_same_numbers(ways, graphs):
    before = adversaries(**ways)
    graphs.begin()
    assert same(before, adversaries(**ways))
    assert graphs.site.outcome.status == "applied", graphs.site.outcome
    assert "Generator" in graphs.site.outcome.why
    assert "forward and backward of Judge" in graphs.site.outcome.why
    assert graphs.recorder.replays["forward"] > EPOCHS


def pair(views=2, optimizer=sgd, keeps=False, device="cpu"):
    """Trains a model that is called for each view of a batch before the backward."""
    torch.manual_seed(0)
    net = Net(dropout=0.2).to(device)
    optim = optimizer(net.parameters())
    seen, held = [], []
    for _ in range(EPOCHS):
        outputs = [net(torch.randn(5, 6).to(device)) for _ in range(views)]
        loss = (
            sum((output - other).tanh().mean() for output in outputs for other in outputs[:1])
            + outputs[0].tanh().mean()
        )
        optim.zero_grad()
        loss.backward()
        optim.step()
        seen.append(loss.detach())
        if keeps:
            held.append([parameter.grad for parameter in net.parameters()])
    kept_gradients = [gradient for gradients in held for gradient in gradients]
    return [*seen, *net.state_dict().values(), *kept_gradients, torch.rand(3)]


@pytest.mark.parametrize("ways", [{}, {"views": 4}, {"views": 7}, {"optimizer": adam}, {"keeps": True}])
def test_several_views_give_the_same_numbers(ways, graphs):
    before = pair(**ways)
    graphs.begin()
    assert same(before, pair(**ways))
    assert graphs.site.outcome.status == "applied", graphs.site.outcome
    assert graphs.recorder.replays["forward"] > EPOCHS


def two_optimizers():
    torch.manual_seed(0)
    net = Net()
    first, second = adam(net.first.parameters()), sgd([*net.norm.parameters(), *net.last.parameters()])
    seen = []
    for _ in range(EPOCHS):
        loss = net(torch.randn(5, 6)).square().mean()
        first.zero_grad()
        second.zero_grad(set_to_none=False)
        loss.backward()
        first.step()
        second.step()
        seen.append(loss.detach())
    return [*seen, *net.state_dict().values()]


def test_two_optimizers_of_one_model_are_replayed(graphs):
    before = two_optimizers()
    graphs.begin()
    assert same(before, two_optimizers())
    why = graphs.site.outcome.why
    assert "Adam's step and SGD's step too" in why, why


def test_forward_without_a_backward_leaves_the_model_free_for_the_next_call(graphs):
    """A discriminator is often called with gradients on without a backward to follow."""

    def train():
        torch.manual_seed(0)
        net, other = Net(), Net()
        optim, second = sgd(net.parameters()), sgd(other.parameters())
        seen = []
        for _ in range(EPOCHS):
            seen.append(other(torch.randn(5, 6)).detach())
            loss = (net(torch.randn(5, 6)) - other(torch.randn(5, 6))).square().mean()
            optim.zero_grad()
            second.zero_grad()
            loss.backward()
            optim.step()
            second.step()
            seen.append(loss.detach())
        return [*seen, *net.state_dict().values(), *other.state_dict().values()]

    before = train()
    graphs.begin()
    assert same(before, train())
    assert graphs.recorder.recorded <= 6


def test_a_model_that_cannot_be_recorded_does_not_affect_the_other(graphs):
    class Counts(Net):
        calls = 0

        def forward(self, rows):
            self.calls += 1
            return super().forward(rows)

    def train():
        torch.manual_seed(0)
        net, other = Net(), Counts()
        optim, second = sgd(net.parameters()), sgd(other.parameters())
        for _ in range(EPOCHS):
            loss = other(torch.randn(5, 6)).mean() + net(torch.randn(5, 6)).square().mean()
            optim.zero_grad()
            second.zero_grad()
            loss.backward()
            optim.step()
            second.step()
        return [*net.state_dict().values(), *other.state_dict().values(), torch.tensor(other.calls)]

    before = train()
    graphs.begin()
    assert same(before, train())
    assert "Counts stays eager (forward changes the attribute calls" in graphs.site.outcome.why
    assert "forward and backward of Net" in graphs.site.outcome.why
