"""activation-checkpointing keeps fewer tensors and gives the same numbers, with dropout and running statistics too."""

import pytest
import torch
from catalog.compute_models import ROWS, Block, Blocks, mlp, train
from torch import nn

import hotlap
from hotlap.catalog.activation_checkpointing.apply import is_short, repeated


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


def test_losses_statistics_and_random_states_are_the_same():
    losses, model, _, rng = train(Blocks, ROWS)
    calls = dict(vars(type(model.blocks[0])))
    with hotlap.enable(None, with_=["activation-checkpointing=always"]) as enabled:
        ours, twin, _, rng_again = train(Blocks, ROWS)
        assert enabled.outcomes[0].why == "3 blocks, gradients bit-equal on a batch"

    assert ours == losses
    assert torch.equal(rng, rng_again)
    for name, value in model.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name]), name
    assert dict(vars(type(model.blocks[0]))) == calls


def kept_bytes(model):
    """Returns how many bytes one call keeps for the backward pass, without parameters."""
    sizes = {}

    def pack(tensor):
        sizes[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.randn(256, 16)).sum().backward()
    return sum(sizes.values())


def test_fewer_tensors_are_kept_for_backward():
    plain = kept_bytes(train(Blocks, ROWS)[1])
    with hotlap.enable(None, with_=["activation-checkpointing=always"]):
        assert kept_bytes(train(Blocks, ROWS)[1]) < plain / 2


def test_memory_is_not_measured_on_a_cpu():
    with hotlap.enable(None, with_=["activation-checkpointing"]) as enabled:
        train(Blocks, ROWS, steps=4)
        assert "activation-checkpointing=always" in enabled.outcomes[0].why


class Counting(nn.Module):
    """The blocks count their calls, so a second computation would be visible."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(CountingBlock() for _ in range(2)))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.blocks(x))


class CountingBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(16, 16), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


def test_refuses_blocks_that_count_their_calls():
    with hotlap.enable(None, with_=["activation-checkpointing=always"]) as enabled:
        _, model, _, _ = train(Counting, ROWS, steps=5)
        assert enabled.outcomes[0].status == "refused"
        assert [block.calls for block in model.blocks] == [5, 5]


def test_recognises_repeated_blocks():
    model = Blocks()
    assert repeated(torch, model) == list(model.blocks)
    assert repeated(torch, mlp()) == []  # single layers have nothing inside to recompute


def test_applies_only_when_memory_is_short():
    assert is_short(10, 100)
    assert not is_short(50, 100)


class OwnStream(Block):
    def __init__(self):
        super().__init__()
        self.stream = torch.Generator().manual_seed(1)

    def forward(self, x):
        return super().forward(x + torch.randn(x.shape, generator=self.stream))


class Saying(Block):
    def forward(self, x):
        if len(x) > 100:
            print("many")
        return super().forward(x)


@pytest.mark.parametrize(("block", "why"), [(OwnStream, "random streams of its own"), (Saying, "prints")])
def test_refuses_blocks_in_which_recomputation_would_be_visible(block, why):
    def make():
        model = Blocks()
        model.blocks = nn.ModuleList(block() for _ in range(3))
        return model

    losses = train(make, ROWS)[0]
    with hotlap.enable(None, with_=["activation-checkpointing=always"]) as enabled:
        assert train(make, ROWS)[0] == losses
        assert enabled.outcomes[0].status == "refused"
        assert why in enabled.outcomes[0].why
