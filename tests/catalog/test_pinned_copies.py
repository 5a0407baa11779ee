"""pinned-copies chooses which copies to change; the copies themselves need a GPU and are tested in tests/cuda."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hotlap.catalog import entries
from hotlap.catalog.pinned_copies.apply import Copies, apply, waits
from hotlap.catalog.resident_data.device_leaves import DeviceLeaves
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.runtime.root_discovery import RootDiscovery
from hotlap.runtime.site import Site

HOST = torch.ones(2)


@pytest.fixture
def site():
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    site = Site("pinned-copies", entries()["pinned-copies"].code, None, torch, seams, RootDiscovery(seams))
    yield site
    site.close()
    seams.close()


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "expected"),
    [
        ("to", ("cuda",), {}, True),
        ("to", (torch.device("cuda:0"),), {}, True),
        ("to", (), {"device": "cuda"}, True),
        ("to", ("cuda", torch.float16), {}, True),
        ("cuda", (), {}, True),
        ("cuda", (), {"non_blocking": False}, True),
        ("to", ("cuda",), {"non_blocking": True}, False),
        ("to", ("cuda", torch.float16, True), {}, False),
        ("to", ("cpu",), {}, False),
        ("to", (torch.float16,), {}, False),
        ("to", (HOST,), {}, False),
    ],
)
def test_concerns_only_blocking_copies_to_the_device(name, args, kwargs, expected):
    assert waits(name, HOST, args, kwargs) is expected


def test_knows_tensors_of_recent_batches_without_keeping_them_alive(site):
    copies = Copies(site)
    site.after(site.seams.fetching, copies.fetched)
    loader = DataLoader(TensorDataset(torch.arange(40.0), torch.arange(40)), 2)
    iterator = iter(loader)
    inputs, targets = next(iterator)
    assert copies.of_a_batch(inputs)
    assert copies.of_a_batch(targets)
    assert not copies.of_a_batch(inputs.clone())
    assert not copies.of_a_batch(HOST)
    del inputs, targets
    gc.collect()
    assert all(known() is None for batch in copies._recent for known in batch.values())
    for _ in iterator:
        assert len(copies._recent) <= 4


def test_stops_searching_loaders_with_nothing_to_pin_but_still_finds_later_batches(site):
    copies = Copies(site)
    host, foreign = torch.ones(2), torch.ones(2, device="meta")
    copies.fetched(None, (), {}, [host])
    for _ in range(3):
        copies.fetched(None, (), {}, [foreign])  # from another loader, for example: the first batch is not copied yet
    assert copies.of_a_batch(host)
    copies.fetched(None, (), {}, [foreign])
    assert not copies._recent
    copies.fetched(None, (), {}, {"inputs": [host], "where": foreign})
    assert copies.of_a_batch(host)
    assert not copies.of_a_batch(foreign)


def test_resident_data_still_sees_watched_batches_copied(site):
    apply(site)
    learning = DeviceLeaves(frozenset({"meta"}))
    for _ in range(2):
        (watched,) = learning.watch([torch.ones(2)])
        assert watched.to("meta").shape == (2,)
        del watched
    while not learning.asked():
        pass
    assert learning.devices == {0: torch.device("meta")}


def test_other_uses_of_to_are_unchanged_and_closing_leaves_nothing(site):
    before = torch.Tensor.to, torch.Tensor.cuda, dict(vars(torch.Tensor))
    apply(site)
    for inputs, targets in DataLoader(TensorDataset(torch.arange(4.0), torch.arange(4)), 2):
        assert inputs.to(torch.float64).dtype == torch.float64
        assert inputs.to("cpu") is inputs
        assert targets.to(inputs).dtype == torch.float32
        assert inputs.to("meta").device.type == "meta"
    assert site.outcome.status == "no effect"
    site.close()
    assert (torch.Tensor.to, torch.Tensor.cuda, dict(vars(torch.Tensor))) == before
