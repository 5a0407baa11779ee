"""device-prefetch is tested without a GPU: copies go to torch's `meta` device and are counted."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import hotlap
from hotlap.catalog import entries
from hotlap.catalog.device_prefetch.apply import PrefetchIterator
from hotlap.catalog.resident_data.device_leaves import SETTLED, DeviceLeaves
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.runtime.root_discovery import RootDiscovery
from hotlap.runtime.site import Site

DEVICE = "meta"


class Copies:
    """Copies go to the meta device, and each must be received before its batch is handed out."""

    def __init__(self):
        self.sent, self.received = 0, 0

    def learning(self):
        return DeviceLeaves(frozenset({DEVICE}))

    def send(self, leaves, devices):
        self.sent += 1
        return [leaf.to(devices[at]) if at in devices else leaf for at, leaf in enumerate(leaves)], self.sent

    def receive(self, leaves, event):
        self.received += 1
        assert event == self.received


@pytest.fixture
def site():
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    name = "device-prefetch"
    site = Site(name, entries()[name].code, None, torch, seams, RootDiscovery(seams))
    yield site
    site.close()
    seams.close()


@pytest.fixture
def copies(site):
    copies = Copies()
    prefetching = PrefetchIterator(site, copies)
    site.after(site.seams.iterating, prefetching.iterated)
    site.ledger.later(prefetching.leave)
    return copies


def data(length=40):
    return TensorDataset(torch.arange(length * 2.0).reshape(length, 2), torch.arange(length))


def train(loader, epochs=2, use_targets=False):
    found = []
    for _ in range(epochs):
        for inputs, targets in loader:
            shape = inputs.shape
            if use_targets:
                found.append(targets.tolist())
            else:
                targets = targets.to(DEVICE)
            inputs = inputs.to(DEVICE)
            found.append((shape, torch.rand(1).item()))
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_arrive_on_the_device_in_order(site, copies, workers, persistent):
    options = {"shuffle": True, "num_workers": workers, "persistent_workers": persistent and workers > 0}
    torch.manual_seed(0)
    ours = train(DataLoader(data(), 6, **options), 3)
    assert site.outcome.status == "applied"
    assert "2 of 2" in site.outcome.why
    assert ("a batch ahead" in site.outcome.why) == (workers > 0)
    assert copies.sent >= 7 * 3 - SETTLED - 1
    assert copies.received == copies.sent
    site.close()
    torch.manual_seed(0)
    assert train(DataLoader(data(), 6, **options), 3) == ours


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_already_on_the_device_are_left_alone(site, copies, workers):
    copies.send = lambda leaves, devices: (leaves, None)
    torch.manual_seed(0)
    loader = DataLoader(data(96), 6, shuffle=True, num_workers=workers)
    iterator = iter(loader)
    ours = [torch.cat([tensor.flatten() for tensor in map(move, next(iterator))]) for _ in range(12)]
    assert "_next_data" not in vars(iterator)
    ours += [torch.cat([tensor.flatten() for tensor in batch]) for batch in iterator]
    site.close()
    torch.manual_seed(0)
    plain = [torch.cat([tensor.flatten() for tensor in batch]) for batch in loader]
    assert len(ours) == len(plain) == 16
    assert all(torch.equal(batch, expected) for batch, expected in zip(ours, plain, strict=True))


class Drawing(TensorDataset):
    def __getitem__(self, index):
        return super().__getitem__(index)[0], torch.rand(1)


def left_early(loader, batches=12, epochs=3):
    """Returns what the worker drew in epochs that the loop leaves early."""
    found = []
    for _ in range(epochs):
        for number, (inputs, drawn) in enumerate(loader):
            inputs.to(DEVICE)
            found.append(drawn.tolist())
            if number == batches:
                break
    return found


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_draw_for_no_extra_batch_when_an_epoch_ends_early(site, copies, persistent):
    options = {"num_workers": 1, "persistent_workers": persistent}
    copies.receive = lambda leaves, event: None  # a batch that was sent ahead is dropped with its epoch
    torch.manual_seed(0)
    ours = left_early(DataLoader(Drawing(*data(96).tensors), 6, **options))
    assert site.outcome.status == "applied"
    site.close()
    torch.manual_seed(0)
    assert left_early(DataLoader(Drawing(*data(96).tensors), 6, **options)) == ours


def move(tensor):
    tensor.to(DEVICE)
    return tensor.detach().clone().as_subclass(torch.Tensor)


@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_read_on_the_host_stay_there_with_the_right_values(site, copies, workers):
    options = {"shuffle": True, "num_workers": workers}
    torch.manual_seed(0)
    ours = train(DataLoader(data(), 6, **options), 2, use_targets=True)
    assert "1 of 2" in site.outcome.why
    site.close()
    torch.manual_seed(0)
    assert train(DataLoader(data(), 6, **options), 2, use_targets=True) == ours


def test_an_error_is_raised_with_the_batch_that_caused_it(copies):
    class Failing(TensorDataset):
        def __getitem__(self, index):
            if index == 35:
                raise KeyError("no such item")
            return super().__getitem__(index)

    loader = DataLoader(Failing(*data().tensors), 4, num_workers=1)
    iterator = iter(loader)
    for _ in range(8):
        inputs, targets = next(iterator)
        inputs, targets = inputs.to(DEVICE), targets.to(DEVICE)
    with pytest.raises(KeyError, match="no such item"):
        next(iterator)
    iterator._shutdown_workers()  # torch waits 5 s for them where the collector ends the iterator


def test_handles_iterable_datasets_and_custom_batch_types(site, copies):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(12))

    assert [batch.tolist() for batch in DataLoader(Stream(), 5)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert list(DataLoader(["a", "b"] * 6, 1)) == [["a"], ["b"]] * 6
    assert site.outcome.status == "no effect"


def test_a_dropped_iterator_ends_at_once(copies):
    loader = DataLoader(data(), 4, num_workers=1)
    gc.collect()
    gc.disable()
    try:
        iterator = iter(loader)
        next(iterator)
        worker = iterator._workers[0]
        del iterator
        worker.join(10)
        assert not worker.is_alive()
    finally:
        gc.enable()


def test_closing_leaves_nothing_behind_and_loses_no_batch(site, copies):
    loader = DataLoader(data(), 4, num_workers=1)
    iterator, taken = iter(loader), []
    for _ in range(7):
        inputs, targets = next(iterator)
        taken.append(len(inputs))
        inputs, targets = inputs.to(DEVICE), targets.to(DEVICE)
    site.close()
    taken += [len(inputs) for inputs, _ in iterator]
    assert taken == [4] * 10
    site_free = iter(DataLoader(data(), 4))
    assert "_next_data" not in vars(site_free)


def test_has_no_effect_without_a_gpu(monkeypatch):
    if torch.cuda.is_available():
        return
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    with hotlap.enable(None, with_=["device-prefetch", "pinned-copies"]) as enabled:
        assert [outcome.status for outcome in enabled.outcomes] == ["no effect", "no effect"]
