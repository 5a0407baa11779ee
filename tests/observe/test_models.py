"""The trained module is found and described."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.observe.models import SequenceFirst, describe, describe_optimizer
from hotlap.patch.guard import Guard
from hotlap.patch.roots import Roots
from hotlap.patch.seams import Seams


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Holder(nn.Module):
    """Stands for a LightningModule: it owns the network and is never called itself."""

    def __init__(self):
        super().__init__()
        self.net = Net()


@pytest.fixture
def roots():
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    roots = Roots(seams)
    seams.calling.subscribe(lambda module, args, kwargs: roots.called(module))
    yield roots
    seams.close()


def images() -> torch.Tensor:
    return torch.zeros(1, 3, 4, 4)


def test_the_outermost_owner_of_the_parameters_is_the_root(roots):
    net, loss = Net(), nn.CrossEntropyLoss()
    roots.search(net.parameters())
    loss(net(images()), torch.tensor([0]))
    roots.settle()
    assert roots.tops == [net]
    assert roots.settled
    assert roots.seen


def test_a_model_that_is_not_trained_is_not_the_root(roots):
    net, teacher = Net(), Net()
    roots.search(net.parameters())
    teacher(images())
    assert not roots.seen
    net(images())
    assert roots.seen


def test_an_owner_that_is_never_called_is_replaced_by_its_children(roots):
    holder = Holder()
    roots.search(holder.parameters())
    holder.net(images())
    assert not roots.seen
    roots.settle()
    holder.net(images())
    roots.settle()
    assert roots.seen
    assert roots.settled
    assert roots.tops == [holder]
    assert roots._seams.roots == {id(holder.net)}, "calls of the holder no longer count"


def test_after_the_seams_close_no_class_is_watched():
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    roots = Roots(seams)
    net = Net()
    roots.search(net.parameters())
    assert "__call__" in vars(Net)
    seams.close()
    assert "__call__" not in vars(Net)


def test_a_model_is_described_in_the_users_words():
    net = Net()
    net.head.bias.requires_grad_(False)
    record = describe(net)
    assert (record.name, record.device, record.compiled) == ("Net", "cpu", False)
    assert record.parameters == sum(parameter.numel() for parameter in net.parameters())
    assert record.trainable == record.parameters - 2
    assert record.tensors == 4
    assert record.layers == {"Conv2d": 1, "ReLU": 1, "Linear": 1}
    assert record.dtypes == {"float32": record.parameters}
    assert record.place is not None
    assert record.place.file == __file__
    assert record.place.function.endswith("Net.forward")


def test_the_memory_format_follows_from_the_weights_of_convolutions():
    assert describe(Net()).memory_format == "contiguous"
    assert describe(Net().to(memory_format=torch.channels_last)).memory_format == "channels_last"
    assert describe(nn.Linear(2, 2)).memory_format == "none"
    assert describe(nn.Conv2d(8, 8, 1)).memory_format in ("contiguous", "none")


def test_a_compiled_model_is_described_as_what_was_compiled():
    record = describe(torch.compile(Net(), backend="eager"))
    assert (record.name, record.compiled) == ("Net", True)
    in_place = Net()
    in_place.compile(backend="eager")
    assert describe(in_place).compiled
    inner = Net()
    inner.body.compile(backend="eager")
    assert describe(inner).compiled


def test_a_model_without_parameters_is_described():
    record = describe(nn.ReLU())
    assert (record.parameters, record.device, record.memory_format) == (0, "cpu", "none")


def test_an_optimizer_is_described_with_the_way_it_updates():
    net = Net()
    plain = describe_optimizer(torch.optim.AdamW(net.parameters()))
    assert (plain.name, plain.groups, plain.tensors, plain.fused, plain.foreach) == ("AdamW", 1, 4, False, None)
    assert plain.place is None, "nobody here can change torch's own"
    groups = [{"params": net.body.parameters()}, {"params": net.head.parameters()}]
    fused = describe_optimizer(torch.optim.Adam(groups, fused=True))
    assert (fused.groups, fused.fused) == (2, True)
    assert describe_optimizer(torch.optim.SGD(net.parameters(), foreach=False)).foreach is False


def test_an_optimizer_of_the_users_is_described_with_the_line_of_its_step():
    class Signs(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        def step(self, closure=None):
            pass

    record = describe_optimizer(Signs(nn.Linear(2, 2).parameters()))
    assert record.place is not None
    assert record.place.file == __file__
    assert record.place.function.endswith("Signs.step")


@pytest.mark.parametrize(
    ("model", "may_be"),
    [
        (torch.nn.LSTM(2, 3), True),
        (torch.nn.LSTM(2, 3, batch_first=True), False),
        (torch.nn.Transformer(8, 2, 1, 1, 8), True),
        (torch.nn.Transformer(8, 2, 1, 1, 8, batch_first=True), False),
        (torch.nn.Linear(2, 3), False),
    ],
    ids=["recurrent", "recurrent, batch first", "transformer", "transformer, batch first", "none"],
)
def test_layers_that_take_texts_word_by_word_hide_the_size_of_a_batch(model, may_be):
    assert SequenceFirst()(model) is may_be
