"""Every seed of a program is shifted by the amount of its pair."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from hotlap.patch.ledger import Ledger
from hotlap.trial.seeds import Seeds


@pytest.fixture
def shifted():
    ledgers = []
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()

    def shift(by: int) -> None:
        ledgers.append(Ledger())
        Seeds(by, ledgers[-1]).install()

    yield shift
    for ledger in ledgers:
        ledger.close()
    random.setstate(states[0])
    numpy.random.set_state(states[1])
    torch.set_rng_state(states[2])


DRAWS = {
    "torch": lambda seed: (torch.manual_seed(seed), torch.rand(1).item())[1],
    "a generator": lambda seed: torch.rand(1, generator=torch.Generator().manual_seed(seed)).item(),
    "python": lambda seed: (random.seed(seed), random.random())[1],
    "a python generator": lambda seed: random.Random(seed).random(),
    "numpy": lambda seed: (numpy.random.seed(seed), numpy.random.rand())[1],
    "a numpy generator": lambda seed: numpy.random.default_rng(seed).random(),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_every_kind_of_seed_is_shifted_by_the_same_amount(kind, shifted):
    expected = [DRAWS[kind](seed) for seed in (5, 7)]
    shifted(0)
    assert DRAWS[kind](5) == expected[0]
    shifted(2)
    assert DRAWS[kind](5) == expected[1]


def test_a_program_without_a_seed_draws_the_same_numbers_each_time(shifted):
    drawn = []
    for shift in (0, 0, 1):
        shifted(shift)
        drawn.append((torch.rand(1).item(), random.random(), numpy.random.rand(), numpy.random.default_rng().random()))

    assert drawn[0][:3] == drawn[1][:3]
    assert all(value != shifted_value for value, shifted_value in zip(drawn[0], drawn[2], strict=True))


def test_a_shifted_generator_is_still_a_torch_generator(shifted):
    shifted(1)
    generator = torch.Generator()

    assert generator.manual_seed(3) is generator
    assert isinstance(torch.default_generator, torch.Generator)
    assert list(torch.utils.data.RandomSampler(range(3), generator=generator))
