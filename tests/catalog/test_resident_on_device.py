"""resident-data chooses which tensors of a batch to keep on the device, here torch's `meta` device."""

from __future__ import annotations

import copy
import io
import sys

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import hotlap
from hotlap.catalog.resident_data.apply import Keeper
from hotlap.catalog.resident_data.caches import Caches
from hotlap.catalog.resident_data.device_leaves import SETTLED, DeviceLeaves

HOST, DEVICE = "cpu", "meta"


@pytest.fixture(autouse=True)
def enabled(monkeypatch, answering):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    applying = sys.modules["hotlap.catalog.resident_data.apply"]
    monkeypatch.setattr(applying, "new_learning", lambda: DeviceLeaves(frozenset({DEVICE})))
    answering(Keeper, on_a_device=True)
    answering(Caches, device_memory=1e6)
    with hotlap.enable(None, with_=["resident-data"]) as enabled:
        yield enabled


@pytest.fixture
def data():
    return TensorDataset(torch.arange(40.0).reshape(20, 2), torch.arange(20))


def usual(inputs, targets):
    return inputs.to(DEVICE), targets.to(DEVICE)


def devices(loader, use, epochs=4):
    """Returns where the tensors of each batch were in the last epoch."""
    for _ in range(epochs):
        found = []
        for inputs, targets in loader:
            assert isinstance(inputs, torch.Tensor)
            found.append((inputs.device.type, targets.device.type))
            use(inputs, targets)
    return set(found)


def where(loader, use):
    """Returns the same without reading the device of a batch while it is watched."""
    count = 0
    for _ in range(4):
        for inputs, targets in loader:
            count += 1
            if count > SETTLED:
                return inputs.device.type, targets.device.type
            inputs, targets = use(inputs, targets) or (None, None)
    raise AssertionError("too few batches")


def test_tensors_only_copied_to_the_device_are_kept_there(data, enabled):
    assert where(DataLoader(data, 4), usual) == (DEVICE, DEVICE)
    assert "2 of 2 tensors per batch" in enabled.outcomes[0].why


def test_the_programs_own_copy_then_costs_nothing(data):
    loader = DataLoader(data, 4)
    where(loader, usual)
    inputs, _ = next(iter(loader))
    assert inputs.to(DEVICE) is inputs


def labels_on_host(inputs, targets):
    inputs.to(DEVICE)
    return float((targets == 1).sum()), None


def labels_on_both(inputs, targets):
    targets.to(DEVICE)
    targets.tolist()
    inputs.to(DEVICE)


def twice(inputs, targets):
    inputs.to(DEVICE), inputs.to(DEVICE), targets.to(DEVICE)


def in_a_list(inputs, targets):
    torch.stack([targets, targets])
    usual(inputs, targets)


def written(inputs, targets):
    usual(inputs, targets)
    targets.zero_()


def asks_where(inputs, targets):
    if targets.device.type == "cpu":
        usual(inputs, targets)


@pytest.mark.parametrize("use", [labels_on_host, labels_on_both, in_a_list, written, asks_where])
def test_tensors_used_on_the_host_stay_there(data, use):
    assert where(DataLoader(data, 4), use) == (DEVICE, HOST)


def test_tensors_copied_twice_stay_on_the_host(data):
    assert where(DataLoader(data, 4), twice) == (HOST, DEVICE)


def test_tensors_that_the_program_keeps_stay_on_the_host(data):
    batches = []

    def keeping(inputs, targets):
        batches.append(targets)
        usual(inputs, targets)

    assert where(DataLoader(data, 4), keeping) == (DEVICE, HOST)
    assert torch.cat([batch.as_subclass(torch.Tensor) for batch in batches]).device.type == HOST


def test_programs_may_read_the_shape_and_fill_a_static_tensor(data):
    static = torch.empty(4, 2, device=DEVICE)

    def filling(inputs, targets):
        assert inputs.shape[0] == inputs.size(0) == len(targets)
        static.copy_(inputs)
        targets.to(DEVICE)

    assert where(DataLoader(data, 4), filling) == (DEVICE, DEVICE)


def test_training_and_evaluation_may_use_one_dataset_differently(data):
    assert where(DataLoader(data, 4, shuffle=True), usual) == (DEVICE, DEVICE)
    assert where(DataLoader(data, 5), labels_on_host) == (DEVICE, HOST)


def test_a_loader_created_anew_each_epoch_is_treated_alike(data):
    for _ in range(SETTLED + 1):
        for inputs, targets in DataLoader(data, 20):
            found = inputs.as_subclass(torch.Tensor).device.type
            inputs, targets = inputs.to(DEVICE), targets.to(DEVICE)
    assert found == DEVICE


def test_stays_on_the_host_when_device_memory_is_short(data, enabled, answering):
    answering(Caches, device_memory=100.0)
    assert where(DataLoader(data, 4), usual) == (HOST, HOST)
    assert "not on the device" in enabled.outcomes[0].why


def test_the_value_host_keeps_everything_on_the_host(data):
    hotlap.disable()
    with hotlap.enable(None, with_=["resident-data=host"]):
        assert devices(DataLoader(data, 4), usual) == {(HOST, HOST)}


def test_a_watched_batch_behaves_like_any_tensor(data):
    inputs, targets = next(iter(DataLoader(data, 4)))
    plain = data.tensors[0][:4]
    assert type(inputs) is not torch.Tensor  # otherwise this tests nothing
    assert repr(inputs) == repr(plain)
    assert str(inputs) == str(plain)
    assert type(inputs + 1) is torch.Tensor
    assert torch.equal(inputs, plain)
    assert inputs.numpy().tolist() == plain.tolist()
    assert type(copy.deepcopy(inputs)) is torch.Tensor
    inputs.requires_grad_()
    (inputs * 2).sum().backward()
    assert inputs.grad.eq(2).all()
    assert [int(target) for target in targets] == [0, 1, 2, 3]


def test_a_saved_batch_contains_nothing_of_hotlap(data):
    inputs, _ = next(iter(DataLoader(data, 4)))
    file = io.BytesIO()
    torch.save({"batch": inputs}, file)
    assert b"hotlap" not in file.getvalue()
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["batch"]
    assert type(loaded) is torch.Tensor
    assert torch.equal(loaded, data.tensors[0][:4])
