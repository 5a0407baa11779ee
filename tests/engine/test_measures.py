"""How a training is judged: the names of its metrics, and which epoch is the best."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.engine import RMSE, Recipe, Trainer
from hotlap.engine.data import Tensors
from hotlap.engine.errors import BadRecipe
from hotlap.engine.recipe import Checkpoints

MSE = nn.functional.mse_loss


GENERATOR = torch.Generator().manual_seed(1)


INPUTS, TARGETS = torch.randn(1024, 5, generator=GENERATOR), torch.randn(1024, 2, generator=GENERATOR)


FEW = Tensors(INPUTS[:64], TARGETS[:64])


def quiet(line):
    pass


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))


def trainer(model, optimizer, loss=MSE, say=quiet, **more):
    how = {name: more.pop(name) for name in ("metrics", "train_metrics", "inputs", "step", "evaluate") if name in more}
    return Trainer(model, loss, optimizer, Recipe(**{"batch_size": 16, **more}), device="cpu", say=say, **how)


def sgd(model, **more):
    return torch.optim.SGD(model.parameters(), lr=0.1, **more)


def test_a_metric_may_not_be_named_loss():
    model = network()
    for kind in ("metrics", "train_metrics"):
        with pytest.raises(BadRecipe, match='named "loss"'):
            trainer(model, sgd(model), **{kind: {"loss": RMSE()}})


def test_a_custom_score_named_loss_decides_the_best_epoch():
    model, rising = network(), iter(range(100))
    own = trainer(model, sgd(model), patience=2, evaluate=lambda model: {"loss": float(next(rising))})
    history = own.fit(FEW, epochs=6)
    assert len(history.epochs) == 3
    assert history.best_epoch == 1


def test_one_metric_object_cannot_count_for_both_splits():
    model, metric = network(), RMSE()
    with pytest.raises(BadRecipe, match="share 'rmse'"):
        trainer(model, sgd(model), metrics={"rmse": metric}, train_metrics={"train_rmse": metric})


def test_resuming_with_another_score_starts_a_new_best(tmp_path):
    model, said = network(), []
    how = {"checkpoints": Checkpoints(tmp_path), "patience": 3}
    trainer(model, sgd(model), **how).fit(FEW, FEW, epochs=2)
    rising = iter(range(100))
    own = {"evaluate": lambda model: {"f1": float(next(rising))}, "monitor": "f1", "higher_is_better": True}
    history = trainer(model, sgd(model), say=said.append, **how, **own).fit(FEW, epochs=8, resume=True)
    assert len(history.epochs) == 8
    assert history.best_epoch == 8
    assert any("the best epoch is now the one with the highest f1" in line for line in said)
