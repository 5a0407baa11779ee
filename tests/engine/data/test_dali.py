"""Pipelines of NVIDIA DALI train, on the processor and with the real package."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from hotlap.engine import RMSE, Recipe, Trainer
from hotlap.engine.data import DataMismatch, Loader
from hotlap.engine.errors import BadRecipe

pytestmark = pytest.mark.thorough  # a package of a gigabyte

ROWS = 70


def row(number):
    return np.linspace(number, number + 1, 6, dtype=np.float32) / ROWS


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    for number in range(ROWS):
        np.save(folder / f"{number:03}.npy", row(number))
    return folder


def pipeline(files, shuffle=False, readers=1, batch_size=16, pads=True):
    """Read rows from files and sum them up on the way."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=batch_size, num_threads=1, device_id=None, seed=1)
    def made():
        names = ["rows", "again"][:readers]
        reads = [
            fn.readers.numpy(
                file_root=str(files),
                file_filter="*.npy",
                random_shuffle=shuffle,
                name=name,
                seed=5,
                pad_last_batch=pads,
            )
            for name in names
        ]
        return reads[0], fn.reductions.sum(reads[-1], axes=0, keep_dims=True)

    return made()


def counted(size=ROWS, **options):
    """Make rows in Python, for an iterator that is told how many there are."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    @pipeline_def(batch_size=16, num_threads=1, device_id=None)
    def made():
        inputs = fn.external_source(lambda info: row(info.idx_in_epoch % ROWS), batch=False, dtype=types.FLOAT, ndim=1)
        return inputs, fn.reductions.sum(inputs, axes=0, keep_dims=True)

    more = {"last_batch_policy": LastBatchPolicy.PARTIAL} | options
    return DALIGenericIterator([made()], ["x", "y"], size=size, **more)


class Net(nn.Module):
    """Notes the rows that it is trained on."""

    def __init__(self):
        super().__init__()
        self.head, self.epochs = nn.Linear(6, 1), [[]]

    def forward(self, inputs):
        if self.training:
            self.epochs[-1] += (inputs[:, 0] * ROWS).round().int().tolist()
        return self.head(inputs)


def fitted(train, valid=None, epochs=3, **recipe):
    torch.manual_seed(0)
    model, said = Net(), []
    options = Recipe(**{"batch_size": 16, "threads": 1, "onednn": "off"} | recipe)
    trainer = Trainer(
        model,
        nn.functional.mse_loss,
        torch.optim.Adam(model.parameters(), lr=1e-2),
        options,
        metrics={"rmse": RMSE()},
        device="cpu",
        say=said.append,
        callbacks=[lambda record: model.epochs.append([])],
    )
    return model, trainer.fit(train, valid, epochs=epochs), said, trainer


def test_a_pipeline_trains_and_each_epoch_has_every_row_once(files):
    model, history, said, _ = fitted(pipeline(files))
    assert "training data: 70 rows taken as DALI yields them, in an order of its own" in said
    assert model.epochs[:3] == [list(range(ROWS))] * 3
    assert history.last.loss < history.epochs[0].loss


def test_a_pipeline_shuffles_by_itself(files):
    model, *_ = fitted(pipeline(files, shuffle=True), epochs=2)
    assert [sorted(epoch) for epoch in model.epochs[:2]] == [list(range(ROWS))] * 2
    assert model.epochs[0] != list(range(ROWS))


@pytest.mark.parametrize("resets", [True, False])
def test_an_iterator_trains_whether_or_not_it_resets_itself(resets):
    model, *_ = fitted(counted(auto_reset=resets), epochs=2)
    assert [len(epoch) for epoch in model.epochs[:2]] == [ROWS, ROWS]
    assert model.epochs[0] == list(range(ROWS))


def test_rows_that_only_fill_the_last_batch_are_left_out():
    from nvidia.dali.plugin.pytorch import LastBatchPolicy

    model, *_ = fitted(counted(auto_reset=True, last_batch_policy=LastBatchPolicy.FILL), epochs=1)
    assert model.epochs[0] == list(range(ROWS))


def test_an_endless_iterator_has_the_rows_it_is_said_to_have():
    model, *_ = fitted(Loader(counted(size=-1), rows=32), epochs=2)
    assert model.epochs[:2] == [list(range(32)), [number % ROWS for number in range(32, 64)]]
    with pytest.raises(DataMismatch, match="does not say how many rows an epoch has"):
        fitted(counted(size=-1))


def test_predictions_and_scores_are_those_of_the_rows(files):
    model, history, _, trainer = fitted(pipeline(files), pipeline(files), epochs=1)
    rows = torch.from_numpy(np.stack([row(number) for number in range(ROWS)]))
    with torch.no_grad():
        expected = model(rows)
    assert torch.allclose(trainer.predict(pipeline(files, batch_size=7)), expected, atol=1e-6)
    apart = float((expected - rows.sum(1, keepdim=True)).square().mean().sqrt())
    assert history.last.scores["rmse"] == pytest.approx(apart, rel=1e-4)


def test_what_does_not_fit_is_refused_before_the_first_step(files):
    with pytest.raises(BadRecipe, match="the DALI pipeline has batch_size=16, but the recipe batch_size=8"):
        fitted(pipeline(files), batch_size=8)
    with pytest.raises(DataMismatch, match=r"the DALI pipeline has 2 readers .*give DALIGenericIterator"):
        fitted(pipeline(files, readers=2))
    with pytest.raises(DataMismatch, match=r"some of its 70 rows would come twice in an epoch .*pad_last_batch=True"):
        fitted(pipeline(files, pads=False))
