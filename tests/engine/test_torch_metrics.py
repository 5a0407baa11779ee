"""Metrics of torchmetrics give the same values in the engine as on all outputs at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.engine import RMSE
from hotlap.engine.errors import BadRecipe
from hotlap.engine.recipe import Checkpoints
from hotlap.engine.torch_metrics import TorchMetric
from tests.engine.training import Cut, Rows, captured, cut_at, fitted, numbers, trainer

torchmetrics = pytest.importorskip("torchmetrics")
classification = pytest.importorskip("torchmetrics.classification")


def classes(seed=0):
    inputs, targets = numbers(seed=seed)
    return Rows(inputs, (targets[:, 0] > 0).long() + (targets[:, 0] > 1).long())


OPTIONS = {"model": lambda: nn.Linear(6, 3), "loss": nn.functional.cross_entropy, "batch_size": 16}


@pytest.mark.parametrize("name", ["MulticlassAccuracy", "MulticlassAUROC"])
def test_a_torch_metric_scores_the_validation_split(name):
    metric = getattr(classification, name)(num_classes=3)
    valid = classes(seed=1)
    made, history = fitted(
        train=classes(), valid=valid, metrics={"score": metric, "plain": metric.clone()}, patience=3, **OPTIONS
    )
    with torch.no_grad():
        expected = metric.clone()(made.model(valid.tensors[0]), valid.tensors[1])
    assert history.last.scores["score"] == pytest.approx(float(expected), rel=1e-6)
    scores = [record.scores["score"] for record in history.epochs]
    assert history.best_epoch == scores.index(max(scores)) + 1  # the metric says that higher is better


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_a_torch_metric_is_counted_within_the_steps(graph, monkeypatch):
    options = {"train_metrics": {"mse": torchmetrics.MeanSquaredError(), "rmse": RMSE()}}
    _, history = captured(monkeypatch, **options) if graph else fitted(**options)
    for record in history.epochs:
        assert record.train_scores["mse"] == pytest.approx(record.train_scores["rmse"] ** 2, rel=1e-5)


def test_counts_of_a_torch_metric_are_resumed(tmp_path):
    def options():
        return {"train_metrics": {"mse": torchmetrics.MeanSquaredError()}, "log_every": 1}

    with pytest.raises(Cut):
        fitted(checkpoints=Checkpoints(tmp_path, steps=1), callbacks=[cut_at(8)], **options())
    _, resumed = fitted(checkpoints=Checkpoints(tmp_path), resume=True, **options())
    _, whole = fitted(**options())
    assert [record.train_scores for record in resumed.epochs] == [record.train_scores for record in whole.epochs]


def test_of_picks_what_a_torch_metric_compares():
    metric = TorchMetric(torchmetrics.MeanSquaredError(), of=lambda outputs, target: (outputs[:, 0], target[:, 0]))
    _, history = fitted(metrics={"mse": metric, "rmse": RMSE()})
    assert history.last.scores["mse"] == pytest.approx(history.last.scores["rmse"] ** 2, rel=1e-5)


def test_what_cannot_be_a_score_is_refused():
    with pytest.raises(BadRecipe, match="MulticlassAUROC keeps every batch"):
        trainer(train_metrics={"auroc": classification.MulticlassAUROC(num_classes=3)})
    with pytest.raises(BadRecipe, match="'both' is a MetricCollection; give its metrics by name"):
        trainer(metrics={"both": torchmetrics.MetricCollection([torchmetrics.MeanSquaredError()])})
    each = classification.MulticlassAccuracy(num_classes=3, average=None)
    with pytest.raises(BadRecipe, match=r"MulticlassAccuracy returned shape \[3\], but a score is one number"):
        fitted(train=classes(), valid=classes(1), metrics={"each": each}, **OPTIONS)


def test_a_function_where_a_metric_is_expected_is_refused():
    with pytest.raises(BadRecipe, match=r"'mse' is a function, not a metric; use Mean\(mse\)"):
        trainer(metrics={"mse": lambda outputs, target: 0.0})
