"""Arguments that make no sense are rejected with an error that says what to pass instead."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from hotlap.engine import RMSE, Recipe, Trainer
from hotlap.engine.data.errors import DataMismatch
from hotlap.engine.errors import BadRecipe, NoDevice
from tests.engine.regression import FEW, INPUTS, MSE, TARGETS, network, sgd, trainer
from tests.engine.training import Rows, Stream


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        *((given, r"give arrays, such as \(inputs, targets\), a DataLoader") for given in (3, iter([1]), object())),
        ("train.csv", "give a reader of it: Folder"),
        ({"x": INPUTS}, r"give one of its splits, such as data\['x'\]"),
    ],
)
def test_rejects_data_that_is_not_a_source(given, advice):
    model = network()
    with pytest.raises(BadRecipe, match=advice):
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


DATASET = TensorDataset(INPUTS, TARGETS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": DATASET}, "the model is a TensorDataset; give an nn.Module first, and data to fit"),
        ({"model": INPUTS}, r"the model is a Tensor of shape \[.*\]; give an nn.Module"),
        ({"loss": DATASET}, "loss is a TensorDataset; give a function of outputs and targets"),
        ({"loss": torch.nn.MSELoss}, r"loss is the class MSELoss; create it: MSELoss\(\)"),
        ({"loss": None, "step": 3}, "step is a int; give a function of model and batch"),
        ({"evaluate": {"a": 1}}, "evaluate is a dict; give a function of the model"),
        ({"optimizer": torch.optim.Adam}, "the optimizer is the class Adam; create it: Adam"),
        ({"optimizer": DATASET}, "the optimizer is a TensorDataset; give one of torch.optim"),
        ({"recipe": 16}, r"the recipe is a int; give Recipe\(batch_size=…\)"),
        ({"metrics": RMSE()}, "metrics is a RMSE; give a dict of metrics by name"),
        ({"metrics": [RMSE()]}, "metrics is a list; give a dict"),
        ({"metrics": {"mse": MSE}}, "'mse' is a function, not a metric"),
        ({"train_metrics": MSE}, "train_metrics is the function mse_loss; give a dict"),
    ],
)
def test_what_is_in_the_wrong_place_is_named(given, message):
    model = network()
    usual = {"model": model, "loss": MSE, "optimizer": sgd(model), "recipe": Recipe(batch_size=4), "device": "cpu"}
    with pytest.raises(BadRecipe, match=message):
        Trainer(**{**usual, **given})


@pytest.mark.parametrize(
    ("epochs", "message"),
    [
        (DATASET, "epochs is a TensorDataset; fit takes training data, validation data and epochs="),
        (0, "epochs=0; use a whole number of at least 1"),
        (2.5, "epochs=2.5; use a whole number"),
    ],
)
def test_rejects_what_are_no_epochs(epochs, message):
    model = network()
    with pytest.raises(BadRecipe, match=message):
        trainer(model, sgd(model)).fit(FEW, None, epochs)


def column(rows, width=1):
    return torch.linspace(0, 1, rows * width).view(rows, width)


@pytest.mark.parametrize(("outputs", "targets"), [((8, 1), (8,)), ((8,), (8, 1))])
def test_a_loss_of_ones_own_that_compares_each_row_with_all_is_refused_before_the_first_step(outputs, targets):
    class Shaped(torch.nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs).view(outputs)

    model = Shaped(3, 1)
    before = model.weight.detach().clone()
    data = Rows(column(8, 3), torch.rand(8).view(targets))
    options = {"loss": lambda outputs, targets: (outputs - targets).abs().mean(), "optimizer": sgd(model)}
    with pytest.raises(
        BadRecipe, match=r"of different shapes .*\[8\].*, each with all of the other; give them one shape"
    ):
        Trainer(model, recipe=Recipe(batch_size=8), device="cpu", **options).fit(data, epochs=1)
    assert torch.equal(model.weight, before)


def test_a_loss_may_reshape_what_it_compares_and_compare_rows_with_each_other():
    def loss(outputs, targets):
        alike = (targets[:, None] == targets).float()
        return ((outputs.squeeze(1) - targets) ** 2).mean() + ((outputs - outputs.T) * alike).square().mean()

    model = torch.nn.Linear(3, 1)
    data = Rows(column(8, 3), torch.rand(8))
    Trainer(model, loss, sgd(model), Recipe(batch_size=8), metrics={}, device="cpu", evaluate=lambda model: {}).fit(
        data, epochs=1
    )
