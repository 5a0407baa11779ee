"""Averaged weights work for complex and tied parameters and for checkpoints written before a parameter was averaged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.engine import Phase
from hotlap.engine.errors import BadRecipe, NonFiniteLoss
from hotlap.engine.recipe import Checkpoints
from hotlap.engine.run_state import averaged, load_average
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


def test_a_nan_complex_weight_is_not_saved(tmp_path):
    folder = tmp_path / "kept"
    with pytest.raises(NonFiniteLoss, match=r"a weight is not finite after step 1 .*no checkpoint was saved"):
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


def test_a_tied_weight_can_be_frozen_by_either_name():
    before = trainer(model=Tied).model.body.weight.detach().clone()
    made, _ = fitted(model=Tied, phases=(Phase(3, frozen=("twin",)),))
    assert torch.equal(made.model.body.weight, before)
    assert made.model.body.weight.requires_grad, "as it was before"
    with pytest.raises(BadRecipe, match="freezes 'nowhere'"):
        fitted(model=Tied, phases=(Phase(3, frozen=("nowhere",)),))


def test_tied_averages_are_saved_under_both_names_and_resumed(tmp_path):
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
    with resumed.averaged() as resumed_model, whole.averaged() as whole_model:
        assert torch.equal(resumed_model.body.weight, whole_model.body.weight)


def test_an_average_missing_from_an_older_checkpoint_starts_from_its_weights(tmp_path):
    options = {"model": Spectral, "ema": 0.5, "optimizer": torch.optim.SGD, "clip": None}
    fitted(epochs=2, checkpoints=Checkpoints(tmp_path), **options)
    saved = torch.load(tmp_path / "last.pt", weights_only=True)
    del saved["average"]["weight"]
    made = trainer(**options)
    made.model.load_state_dict(saved["model"])
    average = Average(made.model, 0.5)
    load_average(made.model, average, {**saved, "average_sums": {}})
    found = averaged(made.model, average)
    torch.testing.assert_close(found["weight"], saved["model"]["weight"])
    torch.testing.assert_close(found["head.bias"], saved["average"]["head.bias"])


def test_the_weights_before_the_first_step_have_no_part_in_the_average():
    made, _ = fitted(epochs=1, batch_size=70, ema=0.999)
    after = {name: value.detach().clone() for name, value in made.model.named_parameters()}
    with made.averaged() as model:
        for name, value in model.named_parameters():
            torch.testing.assert_close(value, after[name])
    assert all(torch.equal(value, after[name]) for name, value in made.model.named_parameters())
