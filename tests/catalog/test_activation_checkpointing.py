"""activation-checkpointing: the same numbers with dropout and running statistics, and less kept."""

import pytest
import torch
from catalog.compute_models import ROWS, Block, Blocks, mlp, train
from torch import nn

import hotlap
from hotlap.catalog.activation_checkpointing.apply import is_short
from hotlap.catalog.activation_checkpointing.blocks import repeated


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


def test_losses_statistics_and_random_states_are_the_same():
    losses, model, _, rng = train(Blocks, ROWS)
    calls = dict(vars(type(model.blocks[0])))
    with hotlap.enable(None, with_=["activation-checkpointing=always"]) as under:
        again, twin, _, rng_again = train(Blocks, ROWS)
        assert under.outcomes[0].why == "3 blocks, gradients bit-equal on a batch"

    assert again == losses
    assert torch.equal(rng, rng_again)
    for name, value in model.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name]), name
    assert dict(vars(type(model.blocks[0]))) == calls


def kept_bytes(model):
    """What the backward pass of one call keeps, parameters aside."""
    kept = {}

    def pack(tensor):
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.randn(256, 16)).sum().backward()
    return sum(kept.values())


def test_less_is_kept_for_backward():
    plain = kept_bytes(train(Blocks, ROWS)[1])
    with hotlap.enable(None, with_=["activation-checkpointing=always"]):
        assert kept_bytes(train(Blocks, ROWS)[1]) < plain / 2


def test_on_a_cpu_memory_is_not_looked_at():
    with hotlap.enable(None, with_=["activation-checkpointing"]) as under:
        train(Blocks, ROWS, steps=4)
        assert "activation-checkpointing=always" in under.outcomes[0].why


class Counting(nn.Module):
    """Its blocks count their calls: a second computation would be noticed."""

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


def test_blocks_that_keep_count_are_refused():
    with hotlap.enable(None, with_=["activation-checkpointing=always"]) as under:
        _, model, _, _ = train(Counting, ROWS, steps=5)
        assert under.outcomes[0].status == "refused"
        assert [block.calls for block in model.blocks] == [5, 5]


def test_what_counts_as_repeated_blocks():
    model = Blocks()
    assert repeated(torch, model) == list(model.blocks)
    assert repeated(torch, mlp()) == []  # single layers: nothing inside to compute again


def test_short_of_memory():
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


@pytest.mark.parametrize(("block", "why"), [(OwnStream, "random streams of its own"), (Saying, "uses print")])
def test_blocks_that_would_show_a_second_computation_are_refused(block, why):
    def make():
        model = Blocks()
        model.blocks = nn.ModuleList(block() for _ in range(3))
        return model

    losses = train(make, ROWS)[0]
    with hotlap.enable(None, with_=["activation-checkpointing=always"]) as under:
        assert train(make, ROWS)[0] == losses
        assert under.outcomes[0].status == "refused"
        assert why in under.outcomes[0].why
