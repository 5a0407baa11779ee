"""Arguments that make no sense are rejected with an error that says what to pass instead."""

from __future__ import annotations

import pytest
import torch

from hotlap.engine import Recipe, Trainer
from hotlap.engine.data.errors import DataMismatch
from hotlap.engine.errors import BadRecipe, NoDevice
from tests.engine.regression import FEW, INPUTS, MSE, TARGETS, network, sgd, trainer
from tests.engine.training import Rows, Stream


@pytest.mark.parametrize("given", [3, "train.csv", {"x": INPUTS}, iter([1]), object()])
def test_rejects_data_that_is_not_a_source(given):
    model = network()
    with pytest.raises(BadRecipe, match=r"give arrays, such as \(inputs, targets\), a DataLoader"):
        trainer(model, sgd(model)).fit(given, epochs=1)


@pytest.mark.parametrize(("part", "message"), [(1.0, "'box' of type float"), (torch.zeros(3), "'box' of shape")])
def test_rejects_loss_parts_that_are_not_single_numbers(part, message):
    model = network()
    with pytest.raises(BadRecipe, match=message):
        trainer(model, sgd(model), lambda outputs, targets: {"fit": MSE(outputs, targets), "box": part}).fit(
            FEW, epochs=1
        )


def test_a_loss_part_may_have_one_dimension():
    model = network()
    loss = lambda outputs, targets: {"fit": MSE(outputs, targets), "box": outputs.mean().reshape(1)}  # noqa: E731
    assert "box" in trainer(model, sgd(model), loss).fit(FEW, epochs=1).epochs[0].losses


def test_rejects_an_unknown_device():
    model = network()
    with pytest.raises(NoDevice, match="device='gpu' is not a device"):
        Trainer(model, MSE, sgd(model), Recipe(batch_size=4), device="gpu")


def test_a_custom_step_is_used_for_evaluation():
    model = network()

    def step(model, batch):
        return MSE(model(batch[0]), batch[1])

    found = trainer(model, sgd(model), None, step=step).evaluate(FEW)
    assert found["valid_loss"] == pytest.approx(float(MSE(model(INPUTS[:64]), TARGETS[:64]).detach()))
    with pytest.raises(BadRecipe, match="nothing to evaluate with"):
        trainer(model, sgd(model), evaluate=lambda model: {"own": 1.0}).evaluate(FEW)


class Keeps(Rows):
    """Leaves rows of a batch out, as a custom source may."""

    def gather(self, index):
        return tuple(tensor[:5] for tensor in super().gather(index))


def first_five(number, batch):
    return tuple(tensor[:5] for tensor in batch)


@pytest.mark.parametrize("source", [Keeps(INPUTS, TARGETS), Stream(INPUTS, TARGETS, altered=first_five)])
def test_rejects_batches_with_missing_rows(source):
    model = network()
    with pytest.raises(DataMismatch, match="rows were requested"):
        trainer(model, sgd(model)).fit(source, epochs=1)
    with pytest.raises(DataMismatch, match="rows were requested"):
        trainer(model, sgd(model)).fit(FEW, source, epochs=1)


class EndsEarly(Stream):
    def batches(self, *how):
        yield next(super().batches(*how))


def test_rejects_a_validation_split_that_ends_early():
    model = network()
    with pytest.raises(DataMismatch, match="the data ended early: 16 rows came"):
        trainer(model, sgd(model), evaluation_batch=16).fit(FEW, EndsEarly(INPUTS, TARGETS), epochs=1)
