"""early-read answers reads of a loss from copies made before the backward, here on an emulated queue."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

from hotlap.catalog import entries
from hotlap.catalog.early_read.apply import CHECKED, PARTS_UNREAD, REMEMBERED, UNREAD, Reads
from hotlap.catalog.early_read.detect import detect
from hotlap.catalog.early_read.reader import SLOTS
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.runtime.root_discovery import RootDiscovery
from hotlap.runtime.site import Site
from tests import observations


class EmulatedReader:
    """The emulated device's queue stands still: a copy holds the value at the time it was requested."""

    def __init__(self):
        self.copies = self.marks = self.waits = 0
        self.asides, self.hosts = [], []
        self.current, self.capturing = 7, False

    def is_here(self, tensor):
        return not any(tensor is host for host in self.hosts)

    def may_mark(self, loss):
        return not self.capturing

    def stream(self, tensor):
        return self.current

    def _host(self, tensor):
        self.hosts.append(tensor.detach().clone())
        return self.hosts[-1]

    def copied(self, tensor):
        self.copies += 1
        return self._host(tensor)

    def mark(self, stream):
        self.marks += 1
        return self.marks

    def wait(self, mark):
        self.waits += 1

    def aside(self, tensor, mark):
        self.asides.append(mark)
        return self._host(tensor)

    @property
    def answered(self):
        return self.waits + len(self.asides)


@pytest.fixture
def at_work():
    """Returns the entry and its device, past the first reads, which are checked against torch's own."""
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    site = Site("early-read", entries()["early-read"].code, None, torch, seams, RootDiscovery(seams))
    reader = EmulatedReader()
    reads = Reads(site, reader)
    reads.begin()
    reads._checked = CHECKED
    yield reads, reader
    site.close()
    seams.close()
    assert "item" not in vars(torch.Tensor)


def loss_of(weight=None):
    weight = nn.Parameter(torch.tensor(3.0)) if weight is None else weight
    return weight.square() + 1


def test_a_loss_that_is_read_is_copied_before_the_next_backward(at_work):
    reads, reader = at_work
    values = []
    for number in range(6):
        loss = loss_of(nn.Parameter(torch.tensor(float(number))))
        loss.backward()
        values.append(loss.item())
        assert loss.item() == values[-1]
    assert values == [number**2 + 1 for number in range(6)]
    assert len(reader.asides) == 2  # the first loss, twice: the entry could not know yet that it would be read
    assert reader.copies == 5
    assert reader.waits == 10
    assert reads._site.outcome.status == "applied"


@pytest.mark.parametrize(
    "read",
    [
        lambda loss: loss.item(),
        float,
        lambda loss: float(f"{loss:.3f}"),
        lambda loss: loss.detach().item(),
        lambda loss: loss.data.item(),
        lambda loss: loss.detach().cpu().numpy().item(),
    ],
)
def test_every_way_of_reading_a_loss_is_answered(at_work, read):
    _, reader = at_work
    loss = loss_of()
    loss.backward()
    assert read(loss) == 10.0
    assert reader.answered == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda loss: (loss * 2).item(),  # made after the backward
        lambda loss: loss.detach().add(0).item(),
        lambda loss: loss.detach().mul_(2).item(),  # changed since, and torch knows
        lambda loss: torch.tensor(20.0).item(),
        lambda loss: 2 * loss.detach().reshape(1).item(),
    ],
)
def test_values_derived_from_the_loss_are_read_as_usual(at_work, other):
    _, reader = at_work
    loss = loss_of()
    loss.backward()
    assert other(loss) in (10.0, 20.0)
    assert reader.answered == 0


def test_a_copy_with_autograd_history_is_made_as_usual(at_work):
    _, reader = at_work
    loss = loss_of()
    loss.backward()
    assert loss.cpu().requires_grad
    assert reader.answered == 0
    with torch.no_grad():
        assert not loss.cpu().requires_grad
    assert reader.answered == 1


def test_a_loss_changed_in_place_reads_its_new_value(at_work):
    _, reader = at_work
    loss = loss_of()
    loss.backward()
    with torch.no_grad():
        loss.mul_(5)
    assert loss.item() == 50.0
    assert reader.answered == 0


def test_a_loss_changed_in_place_before_backward_is_still_answered(at_work):
    _, reader = at_work
    loss = loss_of()
    loss += 2
    loss.backward()
    assert loss.item() == 12.0
    assert reader.answered == 1


def test_the_parts_of_a_loss_are_read_ahead_too(at_work):
    _, reader = at_work
    box, classes = loss_of(), loss_of(nn.Parameter(torch.tensor(1.0)))
    total = (box + 0.5 * classes) / 2
    total.backward()
    assert (box.item(), classes.item(), total.item()) == (10.0, 2.0, 5.5)
    assert reader.asides == [1, 1, 1]


def test_a_part_changed_in_place_reads_its_new_value(at_work):
    _, reader = at_work
    part = loss_of()
    (part * 2).backward()
    with torch.no_grad():
        part.add_(1)
    assert part.item() == 11.0
    assert reader.answered == 0


def test_two_losses_in_one_step_are_both_answered(at_work):
    _, reader = at_work
    for _ in range(3):
        first, second = loss_of(), loss_of(nn.Parameter(torch.tensor(1.0)))
        first.backward()
        second.backward()
        assert (first.item(), second.item()) == (10.0, 2.0)
    assert reader.answered == 6


def test_losses_that_are_never_read_cost_nothing_after_a_while(at_work):
    reads, reader = at_work
    for _ in range(2 * UNREAD):
        loss = loss_of()
        loss.backward()
    assert reader.copies == 0
    assert reader.marks < UNREAD
    assert reads._site.outcome.status == "no effect"
    assert loss.item() == 10.0  # as usual; from here on losses are marked again
    loss = loss_of()
    loss.backward()
    assert loss.item() == 10.0
    assert reader.answered == 1


def test_stops_searching_for_parts_that_are_never_read(at_work):
    reads, _ = at_work
    for _ in range(PARTS_UNREAD + 1):
        loss = loss_of()
        loss.backward()
        loss.item()
    assert reads._backwards[-1].nodes == []


def test_no_graph_outlives_its_loss(at_work):
    held = []

    class Holding(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.held = torch.ones(3)
            held.append(weakref.ref(ctx.held))
            return x * 2

        @staticmethod
        def backward(ctx, upstream):
            return upstream * 2

    loss = Holding.apply(loss_of())
    loss.backward()
    assert held[0]() is not None
    del loss
    gc.collect()
    assert held[0]() is None


def test_reads_on_other_threads_and_streams_are_unchanged(at_work):
    _, reader = at_work
    loss = loss_of()
    loss.backward()
    found = []
    thread = threading.Thread(target=lambda: found.append(loss.item()))
    thread.start()
    thread.join()
    reader.current = 8
    found.append(loss.item())
    assert found == [10.0, 10.0]
    assert reader.answered == 0


def test_nothing_is_marked_while_a_graph_is_captured(at_work):
    _, reader = at_work
    reader.capturing = True
    loss = loss_of()
    loss.backward()
    assert loss.item() == 10.0
    assert reader.marks == 0


def test_detects_an_untracked_write_to_a_loss(at_work):
    reads, _ = at_work
    reads._checked = 0
    loss = loss_of()
    loss.backward()
    loss.item()
    loss = loss_of()
    loss.backward()
    loss.data.mul_(2)  # not counted as a change of the loss
    assert loss.item() == 20.0
    assert reads._site.outcome.status == "withdrawn"
    assert "does not track" in reads._site.outcome.why


def test_a_loss_that_is_nan_counts_as_equal(at_work):
    reads, reader = at_work
    reads._checked = 0
    loss = loss_of(nn.Parameter(torch.tensor(float("nan"))))
    loss.backward()
    assert loss.item() != loss.item()
    assert reader.answered == 2
    assert reads._site.outcome.status == "applied"


def test_withdraws_in_distributed_training(at_work, answering):
    reads, reader = at_work
    answering(torch.distributed, is_initialized=True)
    loss = loss_of()
    loss.backward()
    assert loss.item() == 10.0
    assert reader.marks == 0
    assert reads._site.outcome.status == "withdrawn"


def test_a_failure_withdraws_it_and_the_read_succeeds(at_work, answering):
    reads, reader = at_work
    reads._site.seams.guard.strict = False
    answering(reader, aside=ZeroDivisionError())
    loss = loss_of()
    loss.backward()
    assert loss.item() == 10.0
    assert reads._site.outcome.status == "withdrawn"


def test_copies_are_not_overwritten_while_their_loss_is_remembered():
    assert SLOTS > REMEMBERED


def test_estimates_its_gain_from_waits_for_single_values():
    assert detect(observations.observation()) is None
    assert detect(observations.on_cuda()) is None
    assert detect(observations.sync_bound()).most == pytest.approx((4.0 + 2.0 + 0.5 + 0.4) / 20.0)
