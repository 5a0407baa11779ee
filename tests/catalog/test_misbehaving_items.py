"""Datasets in which a few items misbehave give the same results as without hotlap."""

from __future__ import annotations

import importlib
import socket
import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

import hotlap
from hotlap.loading.samples import same
from tests.catalog.loading import applied
from tests.catalog.resident import outcome, resident, seeded

caches = importlib.import_module("hotlap.catalog.resident_data.caches")
TOTAL, RARE = 60, 17


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


@pytest.fixture
def slow(monkeypatch):
    """The dataset counts as too slow to be fetched before the first batch."""
    for name in ("EAGER", "AT_FIRST"):
        monkeypatch.setattr(caches, name, -1.0)


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
def test_random_items_are_not_kept(workers, slow):
    data = Rows()
    enabled = as_bare(lambda: DataLoader(data, 4, shuffle=True, num_workers=workers))
    assert "random" in outcome(enabled).why


@pytest.mark.parametrize("entries", [["sample-cache"], ["resident-data", "sample-cache"]])
def test_random_items_are_not_cached(entries, slow, constants):
    caching = importlib.import_module("hotlap.catalog.sample_cache.apply")
    constants(caching, WORTH_KEEPING=0.0, CHEAP_COPY=1e9)
    data = Rows()
    as_bare(lambda: DataLoader(data, 4, sampler=RandomSampler(data, True, 80)), 4, entries)


def test_workers_of_a_random_dataset_are_restarted_each_epoch(slow):
    data = Rows()
    make = lambda: DataLoader(data, 4, shuffle=True, num_workers=2)  # noqa: E731
    plain = seeded(make, count=4)
    with applied("resident-data", "loader-persistent"):
        assert same(torch, seeded(make, count=4), plain)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("waits", [False, True])
def test_items_that_print_do_so_in_every_epoch(workers, waits, capfd, request):
    if waits:
        request.getfixturevalue("slow")
    data = Prints()
    make = lambda: DataLoader(data, 4, num_workers=workers)  # noqa: E731
    with resident():
        seeded(make, count=3)
    assert capfd.readouterr().out.count("corrupt") == 3


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("waits", [False, True])
def test_items_that_write_files_do_so_in_every_epoch(workers, waits, tmp_path, request):
    if waits:
        request.getfixturevalue("slow")
    data = Writes(tmp_path / "bad.txt")
    with resident():
        seeded(lambda: DataLoader(data, 4, num_workers=workers), count=3)
    assert (tmp_path / "bad.txt").read_text().count("corrupt") == 3


class Asking(Rows):
    """The dataset requests each item over a socket; the other side counts the requests."""

    def __init__(self, line):
        super().__init__()
        self.line, self.asked = line, 0

    def __getitem__(self, index):
        self.line.sendall(bytes([index]))
        return float(self.line.recv(1)[0])


def test_a_dataset_that_uses_a_socket_is_read_exactly_once_per_item():
    ours, theirs = socket.socketpair()
    answers = []

    def answer():
        while word := theirs.recv(1):
            answers.append(word[0])
            theirs.sendall(word)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with resident():
        seeded(lambda: DataLoader(Asking(ours), 4), count=1)
    ours.close()
    thread.join(10)
    assert answers == list(range(TOTAL))


@pytest.mark.parametrize("waits", [False, True])
def test_persistent_workers_keep_the_dataset_they_started_with(waits, request):
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
