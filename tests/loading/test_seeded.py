"""A generator that an item creates from a seed is deterministic; one that outlives the item, or takes a random seed, is
not."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hotlap.loading.purity import Impure, study_of
from hotlap.patch.ledger import Ledger
from hotlap.trial.seeds import Seeds
from tests.catalog.resident import check, outcome, resident

SHARED = np.random.default_rng(1)


class Base(Dataset):
    def __init__(self, seed=3):
        self.x, self.seed = torch.arange(200.0).reshape(50, 4), seed

    def __len__(self):
        return 50


class OfTorch(Base):
    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(self.seed * 1000 + i)
        return self.x[i] + torch.randn(4, generator=generator), torch.randint(9, (2,), generator=generator)


class OfTorchInPlace(Base):
    def __getitem__(self, i):
        generator = torch.Generator()
        generator.manual_seed(i)
        return torch.zeros(4).normal_(generator=generator)


class OfNumPy(Base):
    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        return torch.tensor(rng.normal(0, 1, 4)), int(rng.integers(0, 9))


class OfOldNumPy(Base):
    def __getitem__(self, i):
        return np.random.RandomState(self.seed + i).randn(4).astype("float32")


class OfPython(Base):
    def __getitem__(self, i):
        rng, order = random.Random(i), [0, 1, 2, 3]
        rng.shuffle(order)
        return self.x[i][order], rng.uniform(0, 1), rng.choice([4, 5])


class InALoop(Base):
    def __getitem__(self, i):
        several = []
        for number in range(3):
            generator = torch.Generator().manual_seed(50 * number + i)
            several.append(torch.rand(2, generator=generator))
        return torch.stack(several)


@pytest.mark.parametrize("kind", [OfTorch, OfTorchInPlace, OfNumPy, OfOldNumPy, OfPython, InALoop])
def test_seeded_items_are_kept_unchanged(kind):
    check(lambda: DataLoader(kind(), 8, shuffle=True))


@pytest.mark.parametrize("kind", [OfTorch, OfNumPy, OfOldNumPy, OfPython])
def test_seeded_items_are_kept_in_a_trial_that_shifts_seeds(kind):
    """Otherwise a tune would measure the unmodified program from its second seed on."""
    ledger, streams = Ledger(), (random.getstate(), np.random.get_state(), torch.get_rng_state())
    try:
        Seeds(1, ledger).install()
        check(lambda: DataLoader(kind(), 8, shuffle=True))
    finally:
        ledger.close()
        random.setstate(streams[0])
        np.random.set_state(streams[1])
        torch.set_rng_state(streams[2])


class FromChance(Base):
    def __getitem__(self, i):
        return torch.tensor(np.random.default_rng().random(4))


class FromNone(Base):
    def __getitem__(self, i):
        return torch.tensor(np.random.default_rng(None).random(4))


class SeededByChance(Base):
    def __getitem__(self, i):
        generator = torch.Generator()
        generator.seed()
        return torch.rand(4, generator=generator)


class Outlives(Base):
    def __getitem__(self, i):
        return torch.tensor(SHARED.random(4))


class MadeFromOneThatOutlives(Base):
    def __getitem__(self, i):
        return torch.tensor(np.random.default_rng(SHARED).random(4))


class IsKept(Base):
    def __getitem__(self, i):
        self.generator = torch.Generator().manual_seed(i)
        return torch.rand(4, generator=self.generator)


class WritesIntoTheDataset(Base):
    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        torch.rand(4, generator=generator, out=self.x[0])
        return self.x[i]


class FillsTheDataset(Base):
    def __getitem__(self, i):
        self.x.normal_(generator=torch.Generator().manual_seed(i))
        return self.x[i]


class ShufflesTheDataset(Base):
    def __getitem__(self, i):
        random.Random(i).shuffle(self.x)
        return self.x[i]


class OfTheSystem(Base):
    def __getitem__(self, i):
        return random.SystemRandom(i).random()


class OfTheProgram(random.Random):
    drawn = 0

    def random(self):
        OfTheProgram.drawn += 1
        return super().random()


class OfAClassOfTheProgram(Base):
    def __getitem__(self, i):
        return OfTheProgram(i).random()


@pytest.mark.parametrize(
    "kind",
    [
        FromChance,
        FromNone,
        SeededByChance,
        Outlives,
        MadeFromOneThatOutlives,
        IsKept,
        WritesIntoTheDataset,
        FillsTheDataset,
        ShufflesTheDataset,
        OfTheSystem,
        OfAClassOfTheProgram,
    ],
)
def test_an_unseeded_draw_is_not_called_pure(kind):
    with pytest.raises(Impure):
        study_of(kind())


class PerhapsFromChance(Base):
    def __init__(self):
        super().__init__()
        self.seeds = {}

    def __getitem__(self, i):
        return torch.tensor(np.random.default_rng(self.seeds.get(i)).random(4))


def test_finds_a_seed_of_none_before_keeping_anything():
    with resident() as enabled:
        list(DataLoader(PerhapsFromChance(), 8))
        assert outcome(enabled).status == "refused"


def test_a_class_that_replaces_a_library_class_is_not_trusted(monkeypatch):
    monkeypatch.setattr(random, "Random", OfTheProgram)
    with pytest.raises(Impure):
        study_of(OfPython())
