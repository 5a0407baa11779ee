"""resident-data notices a change of a dataset between epochs or within one, wherever the change is."""

from __future__ import annotations

import gc
import sys
import weakref
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hotlap
from hotlap.catalog.resident_data.caches import same_function
from hotlap.loading import state
from hotlap.loading.identity import AlsoOfLists
from hotlap.loading.pure import MANY
from hotlap.loading.samples import same
from tests.catalog.resident import outcome, resident

TOTAL = 120  # so many that the items compared at the start of an epoch rarely include a changed one


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


@dataclass
class Record:
    weight: float
    tags: list = field(default_factory=list)


class Rows(Dataset):
    def __init__(self):
        self.array = np.arange(TOTAL, dtype=np.float32)
        self.tensor = torch.arange(TOTAL, dtype=torch.float32)
        self.numbers = [float(row) for row in range(TOTAL)]
        self.pairs = [(row, f"name {row}") for row in range(TOTAL)]
        self.records = {row: Record(row, [row]) for row in range(TOTAL)}
        self.options = {"deep": [{"scale": 1.0}]}
        self.bytes = bytearray(TOTAL)
        self.shift = 0

    def __len__(self):
        return TOTAL

    def __getitem__(self, index):
        record, number = self.records[index], self.numbers[index]
        scale = self.options["deep"][0]["scale"]
        return torch.stack(
            [
                self.tensor[index] * scale + self.shift,
                torch.tensor(float(self.array[index]) + number),
                torch.tensor(record.weight + sum(record.tags) + len(self.pairs[index][1]) + self.bytes[index]),
            ]
        )


def through_data(rows):
    rows.tensor.data[77] = -1


CHANGES = {
    "an array": lambda rows: rows.array.__setitem__(77, -1),
    "an array exchanged": lambda rows: rows.array.__setitem__(slice(76, 78), rows.array[76:78][::-1].copy()),
    "a tensor": lambda rows: rows.tensor.__setitem__(77, -1),
    "a tensor past its version": through_data,
    "a number in a list": lambda rows: rows.numbers.__setitem__(77, -1.0),
    "minus zero": lambda rows: rows.numbers.__setitem__(0, -0.0),
    "a text in a tuple": lambda rows: rows.pairs.__setitem__(77, (77, "another name")),
    "an object's number": lambda rows: setattr(rows.records[77], "weight", -1.0),
    "an object's list": lambda rows: rows.records[77].tags.append(5),
    "a nested option": lambda rows: rows.options["deep"][0].update(scale=2.0),
    "bytes": lambda rows: rows.bytes.__setitem__(77, 3),
    "an attribute": lambda rows: setattr(rows, "shift", 1),
}


def train(change, **options):
    """Reads one epoch before the change and two after it."""
    rows = Rows()
    torch.manual_seed(0)
    loader = DataLoader(rows, 20, shuffle=True, **options)
    seen = list(loader)
    change(rows)
    return seen + list(loader) + list(loader)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_between_epochs_is_seen(change):
    plain = train(change)
    with resident() as enabled:
        assert same(torch, train(change), plain)
        assert "has changed" in outcome(enabled).why
    with hotlap.enable(None, with_=["sample-cache"]):
        assert same(torch, train(change), plain)


def test_unchanged_data_stays_kept():
    plain = train(lambda rows: None)
    with resident() as enabled:
        assert same(torch, train(lambda rows: None), plain)
        assert "disabled later" not in outcome(enabled).why


@pytest.mark.parametrize("change", ["an attribute", "a nested option", "a tensor"])
@pytest.mark.parametrize("entry", ["resident-data", "sample-cache"])
def test_a_change_within_an_epoch_is_seen(change, entry):
    def epochs():
        rows, seen = Rows(), []
        torch.manual_seed(0)
        for _ in range(3):
            for number, batch in enumerate(DataLoader(rows, 20, shuffle=True)):
                seen.append(batch)
                if number == 3:
                    CHANGES[change](rows)
                    rows.shift += 1
        return seen

    plain = epochs()
    with hotlap.enable(None, with_=[entry]):
        assert same(torch, epochs(), plain)


@pytest.mark.parametrize("batch_size", [8, 64])
def test_a_tensor_dataset_may_be_written_to_while_it_is_read(batch_size):
    def epochs():
        values = torch.arange(4096, dtype=torch.float32).reshape(512, 8).clone()
        torch.manual_seed(0)
        seen = []
        for number, (batch,) in enumerate(DataLoader(TensorDataset(values), batch_size, shuffle=True)):
            seen.append(batch.clone())
            if number % 3 == 0:
                values.mul_(2)
        return seen

    plain = epochs()
    with resident() as enabled:
        assert same(torch, epochs(), plain)
        assert outcome(enabled).status == "applied"


class Stacking:
    def __init__(self, scale=1.0):
        self.scale = scale

    def __call__(self, samples):
        return {"x": torch.stack(samples), "scale": self.scale}


class Large(Dataset):
    def __init__(self):
        self.values = torch.randn(12, 2048)

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return self.values[index] * 2


def test_equal_collate_objects_share_one_store():
    assert same_function(Stacking(), Stacking())
    assert not same_function(Stacking(), Stacking(2.0))
    rows = Large()
    with resident() as enabled:
        for _ in range(4):
            list(DataLoader(rows, 4, collate_fn=Stacking()))
        assert outcome(enabled).status == "applied"
        assert "disabled later" not in outcome(enabled).why


def test_gives_up_a_dataset_read_in_a_new_way_each_time():
    rows, references = Large(), []
    with resident() as enabled:
        for number in range(4):
            collate = Stacking(float(number))
            references.append(weakref.ref(collate))
            list(DataLoader(rows, 4, collate_fn=collate))
        assert "a new one each time" in outcome(enabled).why
        del collate
        gc.collect()
        assert [reference() for reference in references] == [None] * 4


def test_deleted_lists_are_not_kept_alive():
    known = AlsoOfLists()
    for number in range(5):
        known.put([number], number)
    assert len(known) == 2


GLOBAL, SCALES = np.arange(TOTAL, dtype=np.float32), {"scale": 1.0}


def scaled(value):
    return value * SCALES["scale"]


class FromGlobals(Dataset):
    shift = 0.0
    table = [float(row) for row in range(TOTAL)]  # noqa: RUF012

    def __len__(self):
        return TOTAL

    def __getitem__(self, index):
        return torch.tensor(scaled(float(GLOBAL[index])) + self.shift + self.table[index])


ELSEWHERE = {
    "a global array": lambda data: GLOBAL.__setitem__(77, GLOBAL[77] + 1),
    "a global setting": lambda data: SCALES.update(scale=SCALES["scale"] + 1),
    "an attribute of the class": lambda data: setattr(FromGlobals, "shift", FromGlobals.shift + 1),
    "a list of the class": lambda data: FromGlobals.table.__setitem__(77, FromGlobals.table[77] + 1),
}


@pytest.mark.parametrize("change", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_objects_named_in_the_code_are_checked_too(change):
    data = FromGlobals()
    with resident() as enabled:
        list(DataLoader(data, 20))
        change(data)
        batches = list(DataLoader(data, 20))
        assert torch.equal(torch.cat(batches), torch.stack([data[index] for index in range(TOTAL)]))
        assert "has changed" in outcome(enabled).why


@pytest.mark.parametrize("change", ["a global setting", "an attribute of the class"])
def test_objects_named_in_the_code_are_checked_within_an_epoch(change):
    data = FromGlobals()
    with resident():
        for number, batch in enumerate(DataLoader(data, 20)):
            expected = torch.stack([data[index] for index in range(20 * number, 20 * number + 20)])
            assert torch.equal(batch, expected)
            if number == 3:
                ELSEWHERE[change](data)


def test_refuses_data_that_is_slower_to_check_than_to_fetch(constants):
    constants(state, ALWAYS=-1.0, OFTEN=0.0)
    with resident() as enabled:
        list(DataLoader(Rows(), 20))
        assert outcome(enabled).status == "refused"
        assert "takes too long" in outcome(enabled).why


def test_datasets_created_again_and_again_are_left_alone(spied):
    held = Rows()
    proven = spied(sys.modules["hotlap.catalog.resident_data.caches"], "stored")
    with resident():
        for _ in range(MANY + 4):
            list(DataLoader(Rows(), 20))
            list(DataLoader(held, 20))  # as before
    assert len(proven) == MANY


class Shared(Dataset):
    """One factor is in memory that workers share with the program; they have a copy of the other."""

    def __init__(self):
        self.rows, self.shared = torch.arange(24.0), torch.ones(1).share_memory_()
        self.private = 1.0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] * self.shared * self.private


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_persistent_workers_keep_the_dataset_they_copied(workers, slow, within, monkeypatch):
    """The private factor changes first, which they do not see, and the shared one later, which they do."""
    if slow:
        for name in ("EAGER", "AT_FIRST"):
            monkeypatch.setattr(sys.modules["hotlap.catalog.resident_data.caches"], name, -1.0)

    def trained():
        torch.manual_seed(0)
        data = Shared()
        loader = DataLoader(data, 4, shuffle=True, num_workers=workers, persistent_workers=True, prefetch_factor=1)
        seen = []
        for epoch in range(7):
            data.private += 1.0
            for number, batch in enumerate(loader):
                seen.append(batch)
                if epoch == 3 and within and number == 2:
                    data.shared.mul_(-1)
            if epoch == 4:
                data.shared.mul_(3)
        return seen

    plain = trained()
    with resident() as enabled:
        ours = trained()
        assert enabled.outcomes[0].status == "applied", enabled.outcomes
    if within:  # how many batches the workers had made by then varies
        last = slice(4 * 6, None)
        plain, ours = plain[last], ours[last]
    assert same(torch, ours, plain)


class Named(Dataset):
    """It reads an array of objects by row."""

    def __init__(self, names):
        self.names = names

    def __len__(self):
        return TOTAL

    def __getitem__(self, index):
        return torch.tensor(float(len(self.names[index][0])))


def texts():
    return np.array([("n" * (1 + row % 7),) for row in range(TOTAL)] + [None], dtype=object)[:TOTAL]


def lists():
    names = np.empty(TOTAL, object)
    names[:] = [["n" * (1 + row % 7)] for row in range(TOTAL)]
    return names


@pytest.mark.parametrize("make", [texts, lists])
@pytest.mark.parametrize("change", [False, True])
@pytest.mark.parametrize("slow", [False, True])
def test_arrays_of_objects_are_kept_or_left_alone(make, change, slow, constants):
    if slow:  # what is not read row by row may not be compared before each batch
        constants(state, ALWAYS=0.0, OFTEN=0.0)

    def trained():
        data = Named(make())
        loader, seen = DataLoader(data, 8), []
        for epoch in range(6):
            for number, batch in enumerate(loader):
                seen.append(batch)
                if change and epoch == 3 and number == 2:
                    data.names[100] = ("changed to something longer",)
        return seen

    plain = trained()
    with hotlap.enable(None, with_=["resident-data"]) as enabled:
        kept = trained()
        (found,) = enabled.outcomes
    assert all(map(torch.equal, kept, plain))
    assert "it failed" not in found.why
