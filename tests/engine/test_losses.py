"""Named losses are weighted and summed; those that would be summed wrongly are rejected."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.engine.errors import BadRecipe
from hotlap.engine.update import Forward
from tests.engine.training import Rows, fitted, numbers, trainer


def named(found, **weights):
    return Forward(torch.nn.Identity(), None, None, 1, weights, "fp32", False).named(found)


def test_parts_are_weighted_and_added_up():
    parts = {"mse": torch.tensor(1.0), "reg": torch.tensor(4.0)}
    assert named(parts, reg=0.5) == {"loss": 3.0, **parts}
    assert named({"loss": torch.tensor(2.0)}, loss=0.5) == {"loss": 1.0}


def test_rejects_a_total_beside_its_parts():
    def loss(outputs, targets):
        mse, reg = (outputs - targets).square().mean(), outputs.abs().mean()
        return {"loss": mse + 0.5 * reg, "mse": mse.detach(), "reg": reg.detach()}

    with pytest.raises(BadRecipe, match=r'"loss" along with its parts.*return {"mse": …, "reg": …} without it'):
        fitted(loss=loss)


def test_rejects_weights_for_a_loss_without_parts():
    with pytest.raises(BadRecipe, match=r"loss_weights names \['mse'\], but the loss returned one tensor"):
        fitted(loss_weights={"mse": 10.0})


def test_a_loss_of_shapes_that_do_not_fit_is_refused_before_a_step():
    inputs, targets = numbers()
    made = trainer()
    before = made.model.head.weight.detach().clone()
    with pytest.raises(BadRecipe, match=r"different shapes \(\[16\] and \[16, 1\]\).*such as targets\[:, None\]"):
        made.fit(Rows(inputs, targets[:, 0]), epochs=1)
    assert torch.equal(made.model.head.weight, before)


def test_a_loss_for_each_row_is_refused():
    with pytest.raises(
        BadRecipe, match=r"the loss has shape \[16, 1\] for 16 rows; return one number, such as loss.mean"
    ):
        fitted(loss=nn.MSELoss(reduction="none"))
