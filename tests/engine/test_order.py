"""The order of rows accepts every seed that torch does, and does not change between versions."""

from __future__ import annotations

import pytest
import torch

from hotlap.engine import Checkpoints, Recipe
from hotlap.engine.config import ConfigInvalid
from hotlap.engine.config_templates import template
from hotlap.engine.errors import BadRecipe
from hotlap.engine.order import epoch_order
from tests.engine.training import fitted, outcome, same

CPU = torch.device("cpu")
LARGE = [1_750_000_000_123_456_789, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]


@pytest.mark.parametrize("seed", [0, 1, 7, 123_456, 2**43, -1, -5, -(2**43)])
def test_ordinary_seeds_keep_giving_the_same_order(seed):
    for epoch in (0, 1, 250):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        assert epoch_order(50, seed, epoch, CPU).equal(torch.randperm(50, generator=generator))


@pytest.mark.parametrize("seed", LARGE)
def test_a_large_seed_gives_another_order_each_epoch(seed):
    assert len({tuple(epoch_order(50, seed, epoch, CPU).tolist()) for epoch in range(5)}) == 5


@pytest.mark.parametrize("seed", LARGE)
def test_a_training_accepts_a_large_seed_and_resumes_with_it(seed, tmp_path):
    whole = fitted(seed=seed, epochs=2)
    options = {"seed": seed, "checkpoints": Checkpoints(tmp_path)}
    fitted(epochs=1, **options)
    same(outcome(*whole), outcome(*fitted(epochs=2, resume=True, **options)))


def test_a_configuration_accepts_the_seeds_that_torch_accepts():
    assert template("lstm", training={"seed": 2**64 - 1}).training.recipe().seed == 2**64 - 1
    said = (
        r"training.seed = 18446744073709551616 is out of range; it must be at least 0 and at most 18446744073709551615"
    )
    with pytest.raises(ConfigInvalid, match=said):
        template("lstm", training={"seed": 2**64})


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_rejects_a_seed_that_torch_would_reject(seed):
    with pytest.raises(BadRecipe, match="use a whole number from"):
        Recipe(batch_size=4, seed=seed)
