"""Datasets of ray.data train, on a cluster whose memory is smaller than the data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from hotlap.engine import RMSE, Checkpoints, Recipe, Trainer
from hotlap.engine.data import DataMismatch, Loader
from hotlap.engine.errors import BadRecipe
from tests.engine.training import Cut, cut_at, outcome, same

pytestmark = pytest.mark.thorough  # installs, and starts, a cluster

MEMORY = 80 * 2**20
WIDTH = 64


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory):
    import ray
    import ray.data

    ray.init(num_cpus=2, object_store_memory=MEMORY, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray
    ray.shutdown()


def features(batch):
    """Make inputs from row numbers, and what they sum up to as the target."""
    numbers = batch["id"].astype(np.float32)
    inputs = np.sin(numbers[:, None] * np.linspace(0.1, 3.0, WIDTH, dtype=np.float32)).astype(np.float32)
    return {"id": batch["id"], "inputs": inputs, "targets": inputs[:, :4].sum(1, keepdims=True)}


def dataset(cluster, rows, blocks=20):
    return cluster.data.range(rows, override_num_blocks=blocks).map_batches(features)


def fitted(train, epochs=2, resume=False, callbacks=(), valid=None, **recipe):
    torch.manual_seed(0)
    model, said = nn.Linear(WIDTH, 1), []
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    options = {"metrics": {"rmse": RMSE()}, "device": "cpu", "say": said.append, "callbacks": callbacks}
    trainer = Trainer(model, nn.functional.mse_loss, optimizer, Recipe(**{"batch_size": 64} | recipe), **options)
    return trainer, trainer.fit(train, valid, epochs=epochs, resume=resume), said


def by_columns(data, **more):
    return Loader(data, columns=("inputs", "targets"), **more)


def test_data_larger_than_the_memory_of_the_cluster_trains(cluster):
    rows = 2 * MEMORY // (4 * WIDTH) // 2048 * 2048
    data = dataset(cluster, rows, blocks=40)
    _, history, said = fitted(by_columns(data), batch_size=2048)
    assert rows * 4 * WIDTH > 1.9 * MEMORY
    assert f"training data: {rows} rows taken as ray.data yields them, drawn from 32 batches at a time" in said
    assert [record.rows for record in history.epochs] == [rows, rows]
    assert history.last.loss < history.epochs[0].loss / 2


class Seen(nn.Module):
    """Notes the row numbers that it is given."""

    def __init__(self):
        super().__init__()
        self.weight, self.epochs = nn.Parameter(torch.zeros(())), [[]]

    def forward(self, numbers):
        self.epochs[-1] += numbers.tolist()
        return self.weight * numbers


def test_each_epoch_has_every_row_once_in_another_order(cluster):
    model = Seen()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    recipe = Recipe(batch_size=50, threads=1, onednn="off")
    trainer = Trainer(
        model,
        lambda outputs: outputs.mean(),
        optimizer,
        recipe,
        device="cpu",
        say=lambda line: None,
        callbacks=[lambda record: model.epochs.append([])],
    )
    trainer.fit(Loader(dataset(cluster, 330, blocks=6), columns=("id",)), epochs=2)
    first, second = model.epochs[:2]
    assert sorted(first) == sorted(second) == list(range(330))
    assert list(range(330)) != first != second


def test_a_resumed_epoch_has_the_batches_it_would_have_had(cluster, tmp_path):
    data = by_columns(dataset(cluster, 640, blocks=8))
    whole = fitted(data, log_every=1)
    with pytest.raises(Cut):
        fitted(data, log_every=1, callbacks=[cut_at(13)], checkpoints=Checkpoints(tmp_path, steps=1))
    resumed = fitted(data, resume=True, log_every=1, checkpoints=Checkpoints(tmp_path))
    same(outcome(*resumed[:2]), outcome(*whole[:2]))


def test_predictions_are_in_the_order_of_the_rows(cluster):
    data = dataset(cluster, 700, blocks=7)
    trainer, history, _ = fitted(by_columns(data), valid=by_columns(data))
    rows = features({"id": np.arange(700)})
    with torch.no_grad():
        expected = trainer.model(torch.from_numpy(rows["inputs"]))
    assert torch.allclose(trainer.predict(by_columns(data)), expected, atol=1e-5)
    apart = float((expected - torch.from_numpy(rows["targets"])).square().mean().sqrt())
    assert history.last.scores["rmse"] == pytest.approx(apart, rel=1e-4)


def test_the_order_that_the_program_asked_for_is_left_alone(cluster):
    data = dataset(cluster, 128, blocks=2)
    fitted(by_columns(data), epochs=1)
    assert data.context.execution_options.preserve_order is False


def test_what_does_not_fit_is_refused_before_the_first_step(cluster):
    data = dataset(cluster, 128, blocks=2)
    with pytest.raises(DataMismatch, match="the dataset has no column 'label'; it has: id, inputs, targets"):
        fitted(Loader(data, columns=("inputs", "label")))
    with pytest.raises(BadRecipe, match="steps_per_epoch joins passes over rows that can be chosen freely"):
        fitted(by_columns(data), steps_per_epoch=3)
