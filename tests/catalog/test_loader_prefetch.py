"""loader-prefetch chooses a depth that fits in memory and gives the same batches."""

import pytest
import torch
from catalog.loading import Random, Rows, Stream, applied, outcome, shuffled, train
from observations import loader, observation
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from hotlap import machine
from hotlap.catalog import entries

NAME = "loader-prefetch"


def test_losses_and_random_numbers_are_the_same():
    alone = train(shuffled(num_workers=2), epochs=2)
    with applied(NAME) as running:
        loader = shuffled(num_workers=2)
        assert loader.prefetch_factor == 4
        assert train(loader, epochs=2) == alone
        assert outcome(running) == ("applied", "Rows: 2 → 4 batches ahead in each of 2 workers")
    assert loader.prefetch_factor == 2


@pytest.mark.parametrize(("choice", "depth"), [(NAME, 8), (f"{NAME}=3", 3)])
def test_the_depth_is_chosen_or_given(choice, depth):
    with applied(choice):
        assert shuffled(num_workers=1).prefetch_factor == depth


def test_memory_limits_the_depth(monkeypatch, answering):
    monkeypatch.setattr(machine, "workers_by_memory", lambda batch, depth: 0 if batch and depth > 5 else 9)
    with applied(NAME):
        assert shuffled(num_workers=1).prefetch_factor == 5
    answering(machine, workers_by_memory=0)
    with applied(NAME) as running:
        assert shuffled(num_workers=1).prefetch_factor == 2
        assert outcome(running)[0] == "refused"


def drawn():
    return RandomSampler(range(24), generator=torch.Generator())


@pytest.mark.parametrize(
    ("make", "status", "said"),
    [
        (lambda: shuffled(), "no effect", "without workers"),
        (lambda: shuffled(num_workers=2, prefetch_factor=6), "no effect", "already prepares 6 batches ahead"),
        (lambda: DataLoader(Stream(), num_workers=1), "refused", "a stream"),
        (lambda: shuffled(Random("torch"), num_workers=1), "refused", "draws random numbers"),
        (lambda: shuffled(num_workers=1, in_order=False), "refused", "delivers batches as they get ready"),
        (lambda: shuffled(num_workers=1, generator=torch.Generator()), "no effect", "would draw earlier"),
        (lambda: DataLoader(Rows(), sampler=drawn(), num_workers=1), "no effect", "would draw earlier"),
        (
            lambda: DataLoader(Rows(), batch_sampler=BatchSampler(drawn(), 8, False), num_workers=1),
            "no effect",
            "would draw earlier",
        ),
    ],
)
def test_states_why_it_does_not_apply(make, status, said):
    with applied(NAME) as running:
        make()
        assert outcome(running)[0] == status
        assert said in outcome(running)[1]


def test_sees_workers_added_by_another_entry(answering):
    answering("hotlap.catalog.loader_workers.apply", cores_of_a_rank=3)
    with applied(NAME, "loader-workers=2", "loader-persistent") as running:
        made = shuffled(Rows())
        assert (made.num_workers, made.prefetch_factor) == (2, 4)
        iter(made)
        assert [entry.status for entry in running.outcomes] == ["applied"] * 3
    assert (made.num_workers, made.prefetch_factor) == (0, None)


def test_estimates_its_gain_from_the_wait_for_data():
    detect = entries()[NAME].detect
    assert detect(observation(shares={"data": 0.2}, loaders=(loader(workers=2, prefetch=2),))).most == 0.2
    assert detect(observation(shares={"data": 0.2}, loaders=(loader(workers=8, prefetch=2),))) is None
