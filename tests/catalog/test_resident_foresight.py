"""The next epoch's order is drawn ahead and equals torch's, as do the streams, whatever is drawn in between."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import hotlap
from hotlap.catalog.resident_data import sampled_indices

DATA = TensorDataset(torch.arange(403.0).reshape(403, 1))
OTHER = TensorDataset(torch.arange(8.0).reshape(8, 1))


@pytest.fixture(autouse=True)
def every_length(constants):
    constants(sampled_indices, LONG=1)


def epochs(sampler, between=lambda number: None):
    torch.manual_seed(3)
    loader, valid = DataLoader(DATA, 16, sampler=sampler), DataLoader(OTHER, 4)
    seen = []
    for number in range(6):
        seen += [batch.flatten().tolist() for (batch,) in loader]
        for (batch,) in valid:
            seen.append(batch.flatten().tolist())
        between(number)
        seen.append(torch.get_rng_state().tolist())
    return seen


@pytest.mark.parametrize(
    ("between", "hits"),
    [
        (lambda number: None, 5),
        (lambda number: torch.rand(3), 0),
        (lambda number: torch.rand(3) if number == 3 else None, 3),
        (lambda number: torch.manual_seed(number), 0),
    ],
)
def test_orders_equal_torchs_and_are_predicted_where_possible(between, hits):
    plain = epochs(RandomSampler(DATA), between)
    sampler = RandomSampler(DATA)
    with hotlap.enable(None, with_=["resident-data"]):
        assert epochs(sampler, between) == plain
    assert sampled_indices._known[sampler].hits == hits


def wait_for(known):
    """Waits until the orders are made."""
    with known._done:
        pass


def hits_after_epoch(known, length=50, draws=1):
    """Draws an epoch's seed after `draws` random numbers, once all orders are made. Returns the hits so far."""
    if known._done is not None:
        wait_for(known)
    drawn = [int(torch.empty((), dtype=torch.int64).random_().item()) for _ in range(draws)]
    expected = torch.randperm(length, generator=torch.Generator().manual_seed(drawn[-1]))
    assert torch.equal(known.order(drawn[-1], length), expected)
    return known.hits


@pytest.mark.parametrize("draws", sampled_indices.GUESSES)
def test_the_second_epoch_is_predicted_by_a_guess(draws):
    known = sampled_indices.Foresight()
    assert [hits_after_epoch(known, draws=draws) for _ in range(4)] == [0, 1, 2, 3]
    assert known._draws == [draws]


def test_a_number_of_draws_seen_before_is_predicted_too():
    known = sampled_indices.Foresight()
    assert [hits_after_epoch(known, draws=draws) for draws in (1, 7, 7, 9, 7, 9, 7)] == [0, 0, 1, 1, 2, 3, 4]


def test_guesses_stay_until_two_epochs_draw_the_same_number():
    known = sampled_indices.Foresight()
    assert [hits_after_epoch(known, draws=draws) for draws in (1, 2, 1, 1, 1, 3, 1)] == [0, 1, 2, 3, 4, 4, 5]


@pytest.mark.parametrize(("length", "orders"), [(50, 4), (51, 3), (100, 2), (101, 1), (1000, 1)])
def test_long_orders_are_drawn_for_fewer_guesses(length, orders, constants):
    constants(sampled_indices, AT_MOST=200)
    known = sampled_indices.Foresight()
    known._begin(1, length)
    wait_for(known)
    assert len(known._orders) == orders


def test_an_early_request_waits_for_at_most_one_order(monkeypatch):
    """Orders are made one by one, and no new one starts while a thread waits."""
    somebody_waits = threading.Event()

    def slowly(seed, length):
        somebody_waits.wait(60)
        return torch.arange(length)

    monkeypatch.setattr(sampled_indices, "permuted", slowly)
    known = sampled_indices.Foresight()
    known._begin(1, 4)
    asking = threading.Thread(target=known._end)
    asking.start()
    while not known._is_time:
        time.sleep(0.001)
    somebody_waits.set()
    asking.join()
    assert len(known._orders) == 1 < len(sampled_indices.GUESSES)


def test_a_dataset_of_another_length_gets_an_order_of_its_own():
    known = sampled_indices.Foresight()
    torch.manual_seed(0)
    for length in (50, 50, 50, 60, 60):
        hits_after_epoch(known, length)
    assert known.hits == 3


def test_short_epochs_are_drawn_on_demand(constants):
    constants(sampled_indices, LONG=1000)
    sampler = RandomSampler(DATA)
    assert sorted(sampled_indices.order_of(sampler, 5, 403).tolist()) == list(range(403))
    assert sampler not in sampled_indices._known
