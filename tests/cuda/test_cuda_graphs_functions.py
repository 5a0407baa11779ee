"""On a GPU, a user's loss over a varying number of rows is replayed for each number of rows, to the bit."""

from __future__ import annotations

import pytest
import torch
from test_cuda_graphs import Net, adamw, mlp, repeatable, same
from torch.nn import functional

import hotlap

pytestmark = pytest.mark.cuda
__all__ = ["repeatable"]  # the fixture
WEIGHTS = (0.5, 1.0, 2.0)


def term(outputs, targets, weight):
    picked = outputs.index_select(0, targets[:, 0].long())
    distance = (picked - targets[:, 1:2]).square()
    for _ in range(8):
        distance = distance * weight + torch.atan(distance) / (1 + distance.detach())
    return distance.mean(), torch.sigmoid(weight * outputs).mean()


def ragged(outputs, targets):
    near = rest = outputs.new_zeros((), dtype=torch.float32)
    for weight in WEIGHTS:
        near_part, rest_part = term(outputs.float(), targets, weight)
        near, rest = near + near_part, rest + rest_part
    return near, rest


def noisy(outputs, targets):
    near, rest = ragged(functional.dropout(outputs, 0.3), targets)
    return near, rest


def waiting(outputs, targets):
    near, rest = ragged(outputs, targets)
    return (near if near > 0 else 2 * near), rest


def train(loss_of, model=mlp, steps=48, autocast=False):
    torch.manual_seed(0)
    net = model().cuda()
    optim = adamw(net.parameters())
    seen = []
    for number in range(steps):
        rows = 20 + number % 5
        inputs = torch.randn(16, 48).cuda()
        targets = torch.stack((torch.arange(rows) % 16.0, torch.randn(rows)), 1).cuda()
        optim.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            outputs = net(inputs)
            near, rest = globals()[loss_of](outputs, targets)
        (near + rest).backward()
        seen += [torch.tensor([near.item(), rest.item()]), outputs.detach().cpu()]
        seen += [parameter.grad.cpu() for parameter in net.parameters()]
        optim.step()
    return [tensor.cpu() for tensor in [*seen, *net.state_dict().values(), torch.rand(2, device="cuda")]]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("model", [mlp, Net])
@pytest.mark.parametrize("loss_of", ["ragged", "noisy"])
def test_a_ragged_loss_is_the_same_to_the_bit(loss_of, model, autocast):
    plain = train(loss_of, model, autocast=autocast)
    assert same(train(loss_of, model, autocast=autocast), plain), "eager training does not repeat itself"
    with hotlap.enable(None, with_=["cuda-graphs"]) as enabled:
        assert same(train(loss_of, model, autocast=autocast), plain)
        (outcome,) = enabled.outcomes
    assert outcome.status == "applied", outcome
    assert f"and of {loss_of}" in outcome.why, outcome


def test_a_loss_that_waits_for_the_device_stays_eager():
    plain = train("waiting")
    with hotlap.enable(None, with_=["cuda-graphs"]) as enabled:
        assert same(train("waiting"), plain)
        (outcome,) = enabled.outcomes
    assert outcome.status == "applied", outcome
    assert "waiting stays eager (it waits for a value from the device)" in outcome.why, outcome
