"""Datasets with a few items that misbehave and no proof has visited, or that talk or read where forks interfere."""

from __future__ import annotations

import importlib
import socket
import sys
import threading

import pytest
import torch
from hotlap.catalog.resident_data.proof import _some
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

import hotlap
from hotlap.catalog.resident_data.sameness import same
from tests.catalog.loading import applied
from tests.catalog.resident import outcome, resident, seeded

applying = sys.modules["hotlap.catalog.resident_data.apply"]
TOTAL = 60
RARE = min({*range(TOTAL)} - {*_some(TOTAL)})


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    monkeypatch.setattr("hotlap.catalog.resident_data.contents.LEAST_LOOKING", 60.0)
    monkeypatch.setattr("hotlap.catalog.resident_data.proof.PATIENCE", 60.0)
    monkeypatch.setattr("hotlap.catalog.resident_data.proof._forks", sys.platform == "linux")
    yield
    hotlap.disable()


@pytest.fixture
def slow(monkeypatch):
    """As if the dataset took too long to be fetched before the first batch."""
    for name in ("EAGER", "IN_FORKS", "PATIENCE"):
        monkeypatch.setattr(applying, name, -1.0)


class Rows(Dataset):
    def __init__(self, place=None):
        self.values, self.place = torch.arange(float(TOTAL)), place

    def __len__(self):
        return TOTAL

    def __getitem__(self, index):
        if index == RARE:
            return self.rare(index)
        return self.values[index]

    def rare(self, index):
        return self.values[index] + torch.rand(())


class Prints(Rows):
    def rare(self, index):
        print("corrupt", index, flush=True)
        return self.values[index]


class Writes(Rows):
    def rare(self, index):
        with self.place.open("a") as file:
            file.write("corrupt\n")
        return self.values[index]


def as_bare(make, count=3, entries=("resident-data",)):
    plain = seeded(make, count=count)
    with hotlap.enable(None, with_=list(entries)) as enabled:
        assert same(torch, seeded(make, count=count), plain)
    return enabled


@pytest.mark.parametrize("workers", [0, 2])
def test_an_item_that_is_random_is_found_also_while_batches_are_kept(workers, slow):
    data = Rows()
    enabled = as_bare(lambda: DataLoader(data, 4, shuffle=True, num_workers=workers))
    assert "random" in outcome(enabled).why


@pytest.mark.parametrize("entries", [["sample-cache"], ["resident-data", "sample-cache"]])
def test_and_no_cache_keeps_it(entries, slow, monkeypatch):
    caching = importlib.import_module("hotlap.catalog.sample_cache.apply")
    monkeypatch.setattr(caching, "WORTH_KEEPING", 0.0)
    monkeypatch.setattr(caching, "CHEAP_COPY", 1e9)
    data = Rows()
    as_bare(lambda: DataLoader(data, 4, sampler=RandomSampler(data, True, 80)), 4, entries)


def test_and_its_workers_do_not_stay(slow):
    data = Rows()
    make = lambda: DataLoader(data, 4, shuffle=True, num_workers=2)  # noqa: E731
    plain = seeded(make, count=4)
    with applied("resident-data", "loader-persistent"):
        assert same(torch, seeded(make, count=4), plain)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("waits", [False, True])
def test_an_item_that_prints_does_so_in_every_epoch(workers, waits, capfd, request):
    if waits:
        request.getfixturevalue("slow")
    data = Prints()
    make = lambda: DataLoader(data, 4, num_workers=workers)  # noqa: E731
    with resident():
        seeded(make, count=3)
    assert capfd.readouterr().out.count("corrupt") == 3


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("waits", [False, True])
def test_an_item_that_writes_does_so_in_every_epoch(workers, waits, tmp_path, request):
    if waits:
        request.getfixturevalue("slow")
    data = Writes(tmp_path / "bad.txt")
    with resident():
        seeded(lambda: DataLoader(data, 4, num_workers=workers), count=3)
    assert (tmp_path / "bad.txt").read_text().count("corrupt") == 3


class Held(Rows):
    """Reads a file it holds, and is random, so that only a copy of the process looks at it."""

    def __init__(self, path):
        super().__init__()
        self.file = path.open("rb")
        self.file.read(16)

    def __getitem__(self, index):
        self.file.seek(16 + index)
        return self.file.read(1)[0] + torch.rand(())


def test_a_file_that_is_held_is_read_on_where_it_was(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(range(16 + TOTAL)))
    found = []
    for entries in ([], ["resident-data"]):
        data = Held(path)
        with hotlap.enable(None, with_=entries):
            found.append(seeded(lambda data=data: DataLoader(data, 4)))
            found[-1].append(data.file.read(3))
    assert same(torch, *found)


class Asking(Rows):
    """Asks on a line of its own for each item; who answers counts."""

    def __init__(self, line):
        super().__init__()
        self.line, self.asked = line, 0

    def __getitem__(self, index):
        self.line.sendall(bytes([index]))
        return float(self.line.recv(1)[0])


def test_nobody_talks_on_a_line_of_the_program():
    here, there = socket.socketpair()
    asked = []

    def answer():
        while word := there.recv(1):
            asked.append(word[0])
            there.sendall(word)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with resident():
        seeded(lambda: DataLoader(Asking(here), 4), count=1)
    here.close()
    thread.join(10)
    assert asked == list(range(TOTAL))


@pytest.mark.parametrize("shared", ["model", "tensor"])
def test_what_moves_while_it_trains_is_not_kept(shared):
    class Moves(Rows):
        def __init__(self):
            super().__init__()
            self.held = (
                nn.Sequential(nn.Sequential(nn.Linear(1, 1))) if shared == "model" else torch.zeros(1).share_memory_()
            )

        def __getitem__(self, index):
            return self.values[index]

    with resident() as enabled:
        list(DataLoader(Moves(), 4))
        assert outcome(enabled).status == "refused"
        assert "may" in outcome(enabled).why


@pytest.mark.parametrize("waits", [False, True])
def test_workers_that_stay_keep_the_dataset_they_started_with(waits, request):
    if waits:
        request.getfixturevalue("slow")

    class Scaled(Rows):
        scale = 1.0

        def __getitem__(self, index):
            return self.values[index] * self.scale

    def train():
        torch.manual_seed(0)
        data, seen = Scaled(), []
        loader = DataLoader(data, 4, shuffle=True, num_workers=2, persistent_workers=True)
        for epoch in range(4):
            data.scale = 1.0 + epoch
            seen += [*loader, torch.rand(1)]
        return seen

    plain = train()
    with resident():
        assert same(torch, train(), plain)


def test_items_are_computed_by_as_many_threads_as_a_worker_has():
    class Threads(Rows):
        def __getitem__(self, index):
            return torch.get_num_threads()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with resident() as enabled:
            for _ in range(2):
                assert {int(one) for batch in DataLoader(Threads(), 4, num_workers=1) for one in batch} == {1}
            assert torch.get_num_threads() == 2
            del enabled
    finally:
        torch.set_num_threads(before)
