"""What a third review of the engine proved wrong."""

from __future__ import annotations

import random
import signal
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch import nn

from hotlap.engine import RMSE, Mean, Phase
from hotlap.engine.config import ConfigInvalid, converted
from hotlap.engine.data import Chained, Parquet, Tensors
from hotlap.engine.data.batch_size import measure_batch_sizes
from hotlap.engine.data.errors import DataUnreadable
from hotlap.engine.errors import BadRecipe, NonFiniteLoss
from hotlap.engine.interrupts import Interrupts
from hotlap.engine.recipe import Checkpoints
from hotlap.engine.saving import averaged, load_average
from hotlap.engine.update import Average
from tests.engine.training import fitted, trainer


class Spectral(nn.Module):
    """A complex weight beside real ones; `broken` makes its gradient 0/0."""

    def __init__(self, broken=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.complex64))
        self.head, self.broken = nn.Linear(6, 1), broken

    def forward(self, inputs):
        if self.broken:
            return self.head(inputs) + (self.weight * 0).abs().square().sum().sqrt()
        return self.head(torch.fft.irfft(torch.fft.rfft(inputs) * self.weight, n=6))


def test_complex_weights_are_averaged_too():
    made, _ = fitted(model=Spectral, ema=0.5, optimizer=torch.optim.SGD, clip=None)
    raw = made.model.weight.detach().clone()
    with made.averaged() as model:
        assert not torch.equal(model.weight, raw)
    assert "weight" in averaged(made.model, made._average)


def test_a_complex_weight_that_is_no_number_is_not_kept(tmp_path):
    folder = tmp_path / "kept"
    with pytest.raises(NonFiniteLoss, match=r"a weight is no number after step 1 .*no checkpoint was kept"):
        fitted(
            model=lambda: Spectral(broken=True), optimizer=torch.optim.SGD, batch_size=70, clip=None,
            checkpoints=Checkpoints(folder),
        )  # fmt: skip
    assert not list(folder.glob("*.pt"))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.twin, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)
        self.twin.weight = self.body.weight

    def forward(self, inputs):
        return self.head(self.twin(self.body(inputs)))


def test_a_tied_weight_is_frozen_by_each_of_its_names():
    before = trainer(model=Tied).model.body.weight.detach().clone()
    made, _ = fitted(model=Tied, phases=(Phase(3, frozen=("twin",)),))
    assert torch.equal(made.model.body.weight, before)
    assert made.model.body.weight.requires_grad, "as it was before"
    with pytest.raises(BadRecipe, match="freezes 'nowhere'"):
        fitted(model=Tied, phases=(Phase(3, frozen=("nowhere",)),))


def test_averaged_weights_are_kept_under_each_of_their_names_and_resumed(tmp_path):
    options = {"model": Tied, "ema": 0.5, "checkpoints": Checkpoints(tmp_path)}
    made, _ = fitted(epochs=2, **options)
    saved = torch.load(tmp_path / "last.pt", weights_only=True)
    fresh = Tied()
    fresh.load_state_dict(saved["average"])
    with made.averaged() as model:
        assert torch.equal(fresh.twin.weight, model.twin.weight)
        assert torch.equal(fresh.body.bias, model.body.bias)
    resumed, _ = fitted(epochs=3, resume=True, **options)
    whole, _ = fitted(epochs=3, **{**options, "checkpoints": None})
    with resumed.averaged() as one, whole.averaged() as other:
        assert torch.equal(one.body.weight, other.body.weight)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("handler", ["ignored", "own"])
def test_signals_that_the_program_sees_to_itself_are_left_to_it(number, handler):
    seen = []
    before = signal.signal(number, signal.SIG_IGN if handler == "ignored" else lambda *_: seen.append(number))
    interrupts = Interrupts()
    try:
        with interrupts.deferred():
            signal.raise_signal(number)
        interrupts.pass_on()
    finally:
        signal.signal(number, before)
    assert interrupts.asked is None
    assert seen == ([number] if handler == "own" else [])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_metrics_of_a_model_in_half_precision_have_room_for_their_sums(dtype):
    predicted, actual = torch.full((1000, 1), 300.0, dtype=dtype), torch.ones(1000, 1, dtype=dtype)
    rmse, mean = RMSE(), Mean(lambda outputs, target: (outputs - target).abs().flatten())
    for metric in (rmse, mean):
        metric.update(predicted, actual)
        assert metric.compute().item() == pytest.approx(299.0, rel=0.01)


def test_measuring_batch_sizes_leaves_all_streams_and_gradients_alone():
    inputs, targets = torch.randn(64, 6), torch.randn(64, 1)
    model, own = nn.Linear(6, 1), nn.Linear(1, 1)
    optimizer = torch.optim.RMSprop([*model.parameters(), *own.parameters()], lr=0.01)

    def step(model, batch):
        np.random.rand(), random.random()
        return (own(model(batch[0])) - batch[1]).square().mean()

    before = random.getstate(), np.random.get_state()[1].tolist()
    found = measure_batch_sizes(model, optimizer, step, Tensors(inputs, targets), 8, [8, 16], seconds=0.01)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert all(one.grad is None for one in own.parameters())
    assert found.adaptive


def test_a_choice_of_whole_numbers_takes_no_other_number():
    assert converted(1, Literal[1, 2], "file", "key") == 1
    with pytest.raises(ConfigInvalid):
        converted(1.0, Literal[1, 2], "file", "key")


def test_files_without_rows_are_no_hindrance_to_those_with_some_and_two_columns_of_a_name_are_told(tmp_path):
    table = pa.table({"a": pa.array(range(8)), "b": pa.array([[0.5, 1.5]] * 8)})
    for name, part in (("whole", table), ("empty", table.slice(0, 0))):
        parquet.write_table(part, tmp_path / f"{name}.parquet")
    files = [Parquet(tmp_path / f"{name}.parquet", "a", "b") for name in ("empty", "whole", "empty")]
    assert Chained(*files).rows == 8
    assert Chained(files[0]).rows == 0
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    parquet.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(DataUnreadable, match=r"twice.parquet.*exists 2 times"):
        Parquet(tmp_path / "twice.parquet", "a")


def test_an_average_that_an_older_checkpoint_lacks_begins_with_the_weights_there(tmp_path):
    options = {"model": Spectral, "ema": 0.5, "optimizer": torch.optim.SGD, "clip": None}
    fitted(epochs=2, checkpoints=Checkpoints(tmp_path), **options)
    saved = torch.load(tmp_path / "last.pt", weights_only=True)
    del saved["average"]["weight"]
    made = trainer(**options)
    made.model.load_state_dict(saved["model"])
    average = Average(made.model, 0.5)
    for one in average.tensors:
        one.zero_()
    load_average(made.model, average, saved["average"])
    found = averaged(made.model, average)
    assert torch.equal(found["weight"], saved["model"]["weight"])
    assert torch.equal(found["head.bias"], saved["average"]["head.bias"])
