"""How a training is judged: the names of its metrics, and which epoch is the best."""

from __future__ import annotations

import pytest

from hotlap.engine import RMSE, Mean
from hotlap.engine.errors import BadRecipe
from hotlap.engine.recipe import Checkpoints
from tests.engine.regression import FEW, network, sgd, trainer


def test_a_metric_may_not_be_named_loss():
    model = network()
    for kind in ("metrics", "train_metrics"):
        with pytest.raises(BadRecipe, match='named "loss"'):
            trainer(model, sgd(model), **{kind: {"loss": RMSE()}})


def test_a_custom_score_named_loss_decides_the_best_epoch():
    model, rising = network(), iter(range(100))
    own = {"evaluate": lambda model: {"loss": float(next(rising))}, "monitor": "loss"}
    history = trainer(model, sgd(model), patience=2, **own).fit(FEW, epochs=6)
    assert len(history.epochs) == 3
    assert history.best_epoch == 1


@pytest.mark.parametrize("better", [True, False])
def test_the_mean_of_an_accuracy_is_maximised_where_it_says_so(better):
    model = network()
    rising = Mean(lambda outputs, target: outputs.new_tensor(float(next(numbers))), higher_is_better=better)
    numbers = iter(range(100))
    history = trainer(model, sgd(model), metrics={"accuracy": rising}).fit(FEW, FEW, epochs=3)
    assert history.best_epoch == (3 if better else 1)


@pytest.mark.parametrize("wanted", [{"patience": 2}, {"checkpoints": Checkpoints("never-made")}])
@pytest.mark.parametrize(
    ("own", "name"),
    [
        ({"metrics": {"accuracy": Mean(lambda outputs, target: (outputs > target).float().mean(1))}}, "'accuracy'"),
        ({"evaluate": lambda model: {"accuracy": 1.0}}, "the first score of evaluate="),
        ({"evaluate": lambda model: {"accuracy": 1.0}, "monitor": "accuracy"}, "'accuracy'"),
    ],
)
def test_a_best_epoch_is_refused_where_nothing_says_which_way_is_better(own, name, wanted):
    model = network()
    with pytest.raises(BadRecipe, match=f"higher or a lower value of {name} is better"):
        trainer(model, sgd(model), **own, **wanted).fit(FEW, FEW, epochs=1)
    own = {**own, "higher_is_better": True} if "patience" in wanted else own
    wanted = wanted if "patience" in wanted else {}
    history = trainer(model, sgd(model), **own, **wanted).fit(FEW, FEW, epochs=1)
    assert history.best_epoch == (1 if wanted else None)


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
