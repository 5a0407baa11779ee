"""Batches from a resident dataset and the random streams equal those of plain torch, bit by bit."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from harness import HOTLAP, alone, bare, python
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from warm import warmed

import hotlap
from hotlap.loading.samples import same
from tests.catalog.resident import check, epochs, outcome, resident, rows_asked_for, seeded

Pair = namedtuple("Pair", "left right")


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


class Made(Dataset):
    """The dataset returns items of a given form."""

    def __init__(self, form, length=23):
        self.values = torch.randn(length, 3, 4, generator=torch.Generator().manual_seed(1))
        self.form = form

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.form(self.values[index], index)


FORMS = {
    "tensor": lambda x, i: x,
    "scalar tensor": lambda x, i: x[0, 0],
    "pair": lambda x, i: (x, i),
    "list": lambda x, i: [x, float(i), i % 2 == 0],
    "dict": lambda x, i: {"x": x, "y": i, "name": f"item {i}"},
    "ordered dict": lambda x, i: OrderedDict(b=x, a=np.float32(i)),
    "namedtuple": lambda x, i: Pair(x, {"deep": [x * 2, i]}),
    "numpy": lambda x, i: (x.numpy(), np.int16(i), x.numpy().astype(np.float64)),
    "numpy bool": lambda x, i: (np.bool_(i % 2), x > 0),
    "strings": lambda x, i: ("abc", b"def", i),
    "one string": lambda x, i: f"item {i}",
    "half": lambda x, i: (x.half(), x.bfloat16(), x.to(torch.complex64)),
    "transposed": lambda x, i: x.t(),
    "channels last": lambda x, i: x.reshape(1, 3, 2, 2).to(memory_format=torch.channels_last)[0],
    "empty": lambda x, i: (x[:0], i),
    "nan": lambda x, i: (x / 0 * 0, -0.0),
}
SAMPLERS = {
    "in order": lambda data: {"batch_size": 5},
    "shuffled": lambda data: {"batch_size": 4, "shuffle": True},
    "dropping": lambda data: {"batch_size": 5, "shuffle": True, "drop_last": True},
    "generator": lambda data: {
        "batch_size": 6, "shuffle": True, "generator": torch.Generator().manual_seed(5)
    },
    "replacement": lambda data: {"batch_size": 7, "sampler": RandomSampler(data, replacement=True, num_samples=40)},
    "more than all": lambda data: {"batch_size": 7, "sampler": RandomSampler(data, num_samples=60)},
    "subset": lambda data: {"batch_size": 3, "sampler": SubsetRandomSampler([3, 1, 4, 15, 9, 2])},
    "weighted": lambda data: {"batch_size": 8, "sampler": WeightedRandomSampler([1.0] * len(data), 30)},
    "distributed": lambda data: {"batch_size": 4, "sampler": DistributedSampler(data, num_replicas=2, rank=1, seed=3)},
    "batch sampler": lambda data: {"batch_sampler": BatchSampler(SequentialSampler(data), 4, True)},
    "list of batches": lambda data: {"batch_sampler": [[0, 1], [5], [2, 2, 2], [22, 0]]},
    "lazy draws": lambda data: {"batch_size": 3, "sampler": Lazy(9)},
    "eager draws": lambda data: {"batch_size": 3, "sampler": Eager(9)},
    "from the end": lambda data: {"batch_size": 3, "sampler": [-1, 0, 1, 2, 3]},
}  # fmt: skip


class Lazy:
    """The sampler draws from the global stream whenever an index is taken."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for _ in range(self.count):
            yield int(torch.randint(0, 20, ()))

    def __len__(self):
        return self.count


class Eager(Lazy):
    """The sampler draws as soon as an iterator is requested."""

    def __iter__(self):
        return iter(torch.randint(0, 20, (self.count,)).tolist())


@pytest.mark.parametrize("form", FORMS)
def test_keeps_every_form_of_sample(form):
    data = Made(FORMS[form])
    check(lambda: DataLoader(data, batch_size=4, shuffle=True))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("stop", [None, 1])
def test_supports_every_sampler_and_loops_that_break_off(sampler, stop):
    data = Made(FORMS["pair"])
    check(lambda: DataLoader(data, **SAMPLERS[sampler](data)), stop=stop, count=3)


@pytest.mark.parametrize("kind", [np.int64, torch.tensor, bool])
def test_unusual_index_types_reach_the_dataset_unchanged(kind):
    rows = Numbered()
    plain = [row.dtype for row in DataLoader(rows, sampler=[kind(0), kind(1)])]
    with resident():
        for _ in range(2):
            list(DataLoader(rows))
            assert [row.dtype for row in DataLoader(rows, sampler=[kind(0), kind(1)])] == plain


class Numbered(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index / 2


@pytest.mark.parametrize("sampler", ["shuffled", "generator", "lazy draws", "eager draws"])
@pytest.mark.parametrize(("workers", "persistent"), [(1, False), (2, True)])
def test_draws_indices_ahead_as_workers_do(sampler, workers, persistent):
    data = Made(FORMS["pair"])
    make = lambda: DataLoader(  # noqa: E731
        data, num_workers=workers, persistent_workers=persistent, **SAMPLERS[sampler](data)
    )
    check(make, count=3)


def test_randomly_configured_loaders_give_the_same_batches():
    """The loaders are chosen at random with a fixed seed."""
    chance = random.Random(3)
    for _ in range(60):
        length = chance.randint(1, 40)
        data = Made(FORMS[chance.choice(list(FORMS))], length)
        data = Subset(data, chance.sample(range(length), chance.randint(1, length))) if chance.random() < 0.3 else data
        options = {
            "batch_size": chance.randint(1, 45),
            "shuffle": chance.random() < 0.5,
            "drop_last": chance.random() < 0.5,
        }
        check(
            lambda data=data, how=options: DataLoader(data, **how),
            count=chance.randint(1, 3),
            status=may_be_nothing(data, options),
        )


def may_be_nothing(data, options):
    return "applied" if not options["drop_last"] or len(data) >= options["batch_size"] else "no effect"


def test_starts_no_worker(answering):
    iterator = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    answering(iterator, __init__=AssertionError("a worker was started"))
    with resident():
        assert len(list(DataLoader(Made(FORMS["pair"]), 4, num_workers=2))) == 6


def test_items_are_fetched_once_for_all_loaders_of_a_dataset(monkeypatch):
    data, fetched = Made(FORMS["pair"], 200), rows_asked_for(monkeypatch)
    with resident():
        for _ in range(4):
            list(DataLoader(data, 10, shuffle=True))
            list(DataLoader(data, 30))
    assert set(fetched) == set(range(200))
    assert len(fetched) < 2 * 200  # some are fetched again and compared; without hotlap there would be 1600


def test_a_tensor_dataset_is_read_in_place():
    data = TensorDataset(torch.randn(30, 2), torch.arange(30))
    check(lambda: DataLoader(data, 4, shuffle=True))
    with resident() as enabled:
        list(DataLoader(data, 4))
        assert "read in place" in outcome(enabled).why


def test_writing_to_a_batch_does_not_change_the_data():
    data = TensorDataset(torch.ones(8, 2))
    with resident():
        for _ in range(2):
            for (batch,) in DataLoader(data, 8):
                assert batch.eq(1).all()
                batch.zero_()
    assert data.tensors[0].eq(1).all()


class Augmented(Made):
    def __init__(self, draw):
        super().__init__(FORMS["pair"])
        self.draw = draw

    def __getitem__(self, index):
        value, label = super().__getitem__(index)
        return value + self.draw(), label


OWN = {"torch": torch.Generator().manual_seed(0), "numpy": np.random.default_rng(0), "python": random.Random(0)}
DRAWS = {
    "torch": lambda: float(torch.rand(())),
    "numpy": lambda: float(np.random.rand()),
    "random": lambda: random.random(),
    "seldom": lambda: 1.0 if random.random() < 1e-9 else 0.0,
    "own torch": lambda: float(torch.rand((), generator=OWN["torch"])),
    "own numpy": lambda: OWN["numpy"].random(),
    "own python": lambda: OWN["python"].random(),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_refuses_random_augmentation_without_moving_its_random_streams(draw):
    def make():
        OWN["torch"].manual_seed(0)
        OWN["python"].seed(0)
        OWN["numpy"].bit_generator.state = np.random.default_rng(0).bit_generator.state
        return DataLoader(Augmented(DRAWS[draw]), 4, shuffle=True)

    check(make, status="refused")


def test_refuses_items_that_differ_without_drawing():
    count = iter(range(10**6))
    data = Augmented(lambda: next(count))
    with resident() as enabled:
        list(DataLoader(data, 4))
        assert "advances an iterator" in outcome(enabled).why


REFUSALS = {
    "ragged": (lambda x, i: x[: 1 + i % 3], "stack"),
    "types differ": (lambda x, i: (x, i if i % 2 else float(i)), "differ|stack"),
    "objects": (lambda x, i: (x, object), "stacked"),
    "gradient": (lambda x, i: x.clone().requires_grad_(), "gradient"),
    "a type that torch cannot copy by rows": (lambda x, i: x.to(torch.float8_e4m3fn), "cannot be copied"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_refuses_samples_that_cannot_be_stacked(kind):
    form, why = REFUSALS[kind]
    data = Made(form)
    with resident() as enabled, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.utils.data._utils.collate, "default_collate_err_msg_format", "{}")
        loader = DataLoader(data, 1)
        try:
            list(loader)
        except TypeError:
            assert kind == "objects"  # torch's own error
        result = outcome(enabled)
        assert result.status == "refused"
        assert any(word in result.why for word in why.split("|")), result


def test_finds_a_single_odd_item_while_filling():
    data = Made(lambda x, i: x if i != 1234 else x[:1], 2000)
    plain = [batch.shape for batch in DataLoader(data, 1)]
    with resident() as enabled:
        assert [batch.shape for batch in DataLoader(data, 1)] == plain
        assert outcome(enabled).status == "refused"


def test_an_item_that_cannot_be_fetched_raises_when_the_user_reaches_it():
    def form(x, i):
        if i == 20:
            raise KeyError("no such item")
        return x

    with resident() as enabled:
        loader = iter(DataLoader(Made(form), 5))
        for _ in range(4):
            next(loader)
        with pytest.raises(KeyError, match="no such item"):
            next(loader)
        assert "no such item" in outcome(enabled).why


def test_iterable_datasets_and_whole_batches_are_left_alone():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(4))

    data = TensorDataset(torch.arange(6))
    for make in (
        lambda: DataLoader(Stream(), 2),
        lambda: DataLoader(data, batch_size=None, sampler=BatchSampler(SequentialSampler(data), 2, False)),
        lambda: DataLoader([], 2, sampler=[]),
    ):
        with resident() as enabled:
            seeded(make)
            assert outcome(enabled).status in ("no effect", "refused")


@pytest.mark.parametrize("change", ["values", "length"])
def test_a_dataset_that_changes_between_epochs_is_fetched_again(change):
    def train(data):
        seen = []
        loader = DataLoader(data, 4)
        for _ in range(3):
            seen += list(loader)
            if change == "values":
                data.values = data.values + 1
            else:
                data.values = data.values[:-4]
                loader = DataLoader(data, 4)
        return seen

    plain = train(Made(FORMS["pair"]))
    with resident() as enabled:
        assert same(torch, train(Made(FORMS["pair"])), plain)
        assert "disabled later" in outcome(enabled).why


def test_refuses_when_memory_is_too_small(answering):
    from hotlap.catalog.resident_data import store

    answering(store, host_memory=1000.0)
    with resident() as enabled:
        list(DataLoader(Made(FORMS["pair"]), 4))
        assert outcome(enabled).status == "refused"
        assert "MB" in outcome(enabled).why


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_slow_dataset_is_kept_during_the_first_epoch(monkeypatch, workers, persistent):
    for name in ("EAGER", "AT_FIRST"):
        monkeypatch.setattr(sys.modules["hotlap.catalog.resident_data.caches"], name, -1.0)
    data = Made(FORMS["dict"])
    options = {"num_workers": workers, "persistent_workers": persistent and workers > 0}
    check(lambda: DataLoader(data, 4, shuffle=True, **options), count=4)
    check(lambda: DataLoader(data, 4, sampler=Lazy(12), **options), count=4)


@pytest.mark.parametrize("workers", [0, 1])
def test_closes_lazily_opened_files_that_workers_would_have_opened(workers, tmp_path):
    class Lazily(Dataset):
        def __init__(self, path):
            self.path, self.file = path, None

        def __len__(self):
            return 8

        def __getitem__(self, index):
            if self.file is None:
                self.file = np.load(self.path, mmap_mode="r")
            return torch.tensor(self.file[index])

    np.save(tmp_path / "rows.npy", np.arange(8.0))
    data = Lazily(tmp_path / "rows.npy")
    with resident() as enabled:
        assert torch.cat(list(DataLoader(data, 4, num_workers=workers))).tolist() == list(range(8))
        assert outcome(enabled).status == "applied"
    assert (data.file is None) == bool(workers)


def test_may_be_enabled_mid_training_with_persistent_workers():
    data = Made(FORMS["pair"])

    def train(then):
        seeded(list)
        loader = DataLoader(data, 4, sampler=Eager(8), num_workers=1, persistent_workers=True)
        return epochs(loader, 1) + (then(), epochs(loader, 2))[1]

    plain = train(lambda: None)
    assert same(torch, train(resident), plain)


def test_disabling_leaves_nothing_behind():
    data, loader_class = Made(FORMS["pair"]), DataLoader
    before = dict(vars(loader_class)), dict(vars(torch.utils.data.dataloader._BaseDataLoaderIter))
    loader = DataLoader(data, 4)
    attributes = dict(vars(loader))
    with resident():
        iterator = iter(loader)
        next(iterator)
    assert len(list(iterator)) == 5  # the running epoch continues
    assert (dict(vars(loader_class)), dict(vars(torch.utils.data.dataloader._BaseDataLoaderIter))) == before
    assert vars(loader) == attributes


def test_the_first_epoch_may_run_in_inference_mode():
    data = Made(FORMS["pair"])
    with resident():
        with torch.inference_mode():
            list(DataLoader(data, 4))
        (inputs, _), *_ = DataLoader(data, 4)
        weight = torch.ones(4, requires_grad=True)
        (inputs * weight).sum().backward()
        assert not inputs.is_inference()


@pytest.mark.parametrize("program", ["plain_loop.py", "accelerate_loop.py"])
def test_whole_programs_train_the_same(program, tmp_path, tmp_path_factory):
    command = python(program)
    expected = alone(tmp_path_factory, command, STEPS="8")
    ran = bare(
        [*HOTLAP, "run", "--with", "resident-data", "--run-dir", str(tmp_path / "kept"), *warmed(command)],
        tmp_path,
        STEPS="8",
    )
    assert ran.code == expected.code == 0, ran.stderr
    assert ran.stdout == expected.stdout
    assert "applied: resident-data" in ran.stderr
