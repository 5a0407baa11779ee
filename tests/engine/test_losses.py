"""Named losses are weighted and summed; those that would be summed wrongly are rejected."""

from __future__ import annotations

import pytest
import torch

from hotlap.engine.errors import BadRecipe
from hotlap.engine.update import Forward
from tests.engine.training import fitted


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
