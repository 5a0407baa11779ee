"""Adam in one launch on a GPU stays close to torch's fused Adam and repeats to the bit, in a captured graph too."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import Adam, AdamW

from hotlap.kernels import adam

pytestmark = pytest.mark.cuda
DEVICE = torch.device("cuda", 0)
SIZES = [(1024, 1000), (1000,), (3,), (257, 513), (1 << 21,)]


def trained(make, clip, ours, steps=20, captured=False):
    torch.manual_seed(0)
    made = [nn.Parameter(torch.randn(size, device=DEVICE)) for size in SIZES]
    optimizer = make(made)
    gradients = [torch.randn_like(parameter) for parameter in made]

    def torchs():
        if clip is not None:
            nn.utils.clip_grad_norm_(made, clip)
        optimizer.step()

    launch = adam.one_launch(optimizer, clip, DEVICE)
    for step in range(steps):
        torch.manual_seed(step)
        for parameter, gradient in zip(made, gradients, strict=True):
            gradient.normal_()
            parameter.grad = gradient
        if step == 1 and captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                assert launch.step()
        if step and captured:
            graph.replay()
        elif step and ours:
            assert launch.step()
        else:
            torchs()
    assert [int(optimizer.state[parameter]["step"]) for parameter in made] == [steps] * len(made)
    return [parameter.detach() for parameter in made]


CASES = {
    "adam": lambda made: Adam(made, fused=True),
    "decay": lambda made: Adam(made, fused=True, weight_decay=0.1),
    "adamw": lambda made: AdamW(made, fused=True, weight_decay=0.1, lr=torch.tensor(1e-3, device=DEVICE)),
}


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_steps_stay_close_to_torch(make, clip):
    for theirs, ours in zip(trained(make, clip, False), trained(make, clip, True), strict=True):
        assert torch.allclose(theirs, ours, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_every_run_gives_the_same_bits_captured_or_not(clip):
    first, again = trained(CASES["adam"], clip, True), trained(CASES["adam"], clip, True)
    captured = trained(CASES["adam"], clip, True, captured=True)
    for parameter, repeated, replayed in zip(first, again, captured, strict=True):
        assert torch.equal(parameter, repeated)
        assert torch.equal(parameter, replayed)


def test_accepts_more_tensors_than_fit_in_one_launch():
    made = [nn.Parameter(torch.ones(5, device=DEVICE)) for _ in range(adam.TENSORS + 5)]
    optimizer = Adam(made, fused=True)
    launch = adam.one_launch(optimizer, 0.5, DEVICE)
    for step in range(4):
        for parameter in made:
            parameter.grad = torch.ones_like(parameter)
        assert step == 0 or launch.step()
        if step == 0:
            nn.utils.clip_grad_norm_(made, 0.5)
            optimizer.step()
    assert len({tuple(parameter.tolist()) for parameter in made}) == 1
    assert made[0].min() < 1
