"""Drawing indices as a tensor and gathering several batches at a time cannot be told from outside."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

import hotlap
from hotlap.catalog.resident_data import sampled_indices as drawing
from hotlap.catalog.resident_data.rows import BatchIndices, Order, TensorRows
from hotlap.catalog.resident_data.sampled_indices import as_torch_draws, drawn
from tests.catalog.resident import rows_asked_for

DATA = TensorDataset(torch.arange(403 * 8, dtype=torch.float32).reshape(403, 8), torch.arange(403))


def test_this_torch_draws_orders_as_hotlap_does():
    assert as_torch_draws()


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_and_random_streams_equal_those_of_the_plain_loader(drop_last, own, workers):
    def epochs():
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(4) if own else None
        sampler = RandomSampler(DATA, generator=generator)
        loader = DataLoader(DATA, 16, sampler=sampler, drop_last=drop_last, num_workers=workers)
        seen = []
        for _ in range(2):
            for rows, numbers in loader:
                state = None if generator is None else generator.get_state().tolist()
                seen.append((rows.tolist(), numbers.tolist(), torch.get_rng_state().tolist(), state))
            seen.append(torch.rand(2).tolist())
        return seen

    plain = epochs()
    with hotlap.enable(None, with_=["resident-data"]) as enabled:
        assert epochs() == plain
        assert enabled.outcomes[0].status == "applied"


def test_a_torch_that_draws_differently_keeps_its_own_sampler(answering):
    loader = DataLoader(DATA, 16, shuffle=True)
    assert drawn(loader) is not None
    answering(drawing, as_torch_draws=False)
    assert drawn(loader) is None


class Own(RandomSampler):
    pass


@pytest.mark.parametrize(
    "sampler",
    [
        Own(DATA),
        RandomSampler(DATA, replacement=True),
        RandomSampler(DATA, num_samples=40),
        RandomSampler(range(1000)),  # more than there are rows
    ],
)
def test_other_samplers_are_iterated_as_usual(sampler):
    assert drawn(DataLoader(DATA, 16, sampler=sampler)) is None
    assert drawn(DataLoader(DATA, batch_sampler=BatchSampler(sampler, 16, False))) is None


def test_a_sequential_order_draws_nothing():
    before = torch.get_rng_state()
    batches = list(drawn(DataLoader(DATA, 100, sampler=SequentialSampler(DATA))))
    assert [batch.indices.tolist()[0] for batch in batches] == [0, 100, 200, 300, 400]
    assert len(batches[-1].indices) == 3
    assert torch.equal(torch.get_rng_state(), before)


def rows(width=8, total=403):
    base = torch.randn(total, width)
    return base, TensorRows(torch, base[:2], total, base)


def test_gathering_several_batches_equals_gathering_each():
    base, resident = rows()
    order = Order(torch.randperm(403))
    taken = [resident.take(BatchIndices(order.indices[at : at + 16], order, at)) for at in range(0, 403, 16)]
    assert torch.equal(torch.cat(taken), base[order.indices])
    assert all(batch.is_contiguous() for batch in taken)
    assert all(batch.untyped_storage().nbytes() == batch.nbytes for batch in taken)  # saving it includes no other batch


def test_writing_to_a_batch_leaves_other_batches_and_the_data_alone():
    base, resident = rows()
    order, before = Order(torch.arange(403)), base.clone()
    first, second = (resident.take(BatchIndices(order.indices[at : at + 16], order, at)) for at in (0, 16))
    weight = torch.ones(8, requires_grad=True)
    loss = (first * weight).sum()  # keeps `first` for its backward
    second.zero_()
    loss.backward()
    assert torch.equal(weight.grad, before[:16].sum(0))
    assert torch.equal(base, before)
    assert torch.equal(first, before[:16])


def test_unaligned_or_large_batches_are_gathered_one_by_one():
    for width, size in ((3, 5), (1 << 18, 16)):
        _, resident = rows(width, 40)
        order = Order(torch.arange(40))
        resident.take(BatchIndices(order.indices[:size], order, 0))
        assert not order.ahead


def test_tensors_in_another_layout_are_copied_in_one_piece(monkeypatch):
    data = TensorDataset(torch.randn(8, 403).T, torch.arange(403))
    plain, fetched = [(rows.tolist(), rows.stride()) for rows, _ in DataLoader(data, 16)], rows_asked_for(monkeypatch)
    with hotlap.enable(None, with_=["resident-data"]) as enabled:
        assert [(rows.tolist(), rows.stride()) for rows, _ in DataLoader(data, 16)] == plain
        assert enabled.outcomes[0].status == "applied"
    assert len(fetched) < 403
