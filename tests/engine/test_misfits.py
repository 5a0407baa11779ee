"""Mistakes that can be known in advance are reported before the first step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.engine import BinaryF1, Checkpoints, FromTorch, Phase
from hotlap.engine.data import CarriedWindows, Windows
from hotlap.engine.data.errors import DataMismatch
from hotlap.engine.errors import BadRecipe, CheckpointNotWritten
from hotlap.engine.optimizers import can_clip, make_fast
from hotlap.engine.recurrent import Recurrent, StateRefused
from tests.engine.training import Rows, Stream, fitted, numbers, trainer


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)


WRONG = {
    "monitor": ({"monitor": "rsme"}, "monitor='rsme' is not a score; use one of rmse, loss"),
    "a name in the second phase": (
        {"phases": (Phase(1), Phase(2, frozen=("boddy",)))},
        "a phase freezes 'boddy', but no parameter's name starts with it",
    ),
    "all frozen in the second phase": (
        {"phases": (Phase(1), Phase(2, frozen=("body", "head")))},
        "a phase freezes body, head: nothing is left to train",
    ),
    "a scheduler in the second phase": (
        {"phases": (Phase(1), Phase(2, schedule=FromTorch(make=one_cycle, by="step")))},
        "cycle_momentum=False",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_rejects_a_recipe_that_does_not_fit_the_model(name):
    options, words = WRONG[name]
    before = []
    with pytest.raises(BadRecipe, match=words):
        fitted(epochs=3, callbacks=[before.append], log_every=1, **options)
    assert not before


def test_rejects_a_checkpoint_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointNotWritten, match="no checkpoint can be written to"):
        fitted(checkpoints=Checkpoints(tmp_path / "file"))


def test_a_carried_state_is_evaluated_with_its_number_of_lanes():
    model = Recurrent("gru", 3, 4, state="carry", lanes=5)
    assert trainer(model=model, batch_size=5)._evaluation().batch == 5


class Carrying(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = Recurrent("gru", 3, 4, state="carry", lanes=5), nn.Linear(4, 1)

    def forward(self, window, fresh):
        return self.head(self.body(window, fresh))


SERIES = [torch.randn(60, 3, generator=torch.Generator().manual_seed(0))]
TARGETS = [SERIES[0][:, :1]]
CARRIED = CarriedWindows(SERIES, 4, TARGETS, lanes=5)
NOT_CARRIED = {
    "plain windows": ({"valid": Windows(SERIES, 4, TARGETS)}, "validation data of Windows, .*; use CarriedWindows"),
    "other lanes": ({"valid": CarriedWindows(SERIES, 4, TARGETS, lanes=3)}, r"5 lanes \(the data has 3\); make"),
    "other batches": ({"valid": CARRIED, "evaluation_batch": 10}, "validation batches of 10 rows cannot continue 5"),
    "other lanes to train on": (
        {"train": CarriedWindows(SERIES, 4, TARGETS, lanes=3), "valid": CARRIED},
        r"training batches of 5 rows .* \(the data has 3\)",
    ),
}


@pytest.mark.parametrize("name", NOT_CARRIED)
def test_rejects_a_carried_state_over_rows_that_do_not_continue(name):
    options, words = NOT_CARRIED[name]
    before = []
    common = {"model": Carrying, "batch_size": 5, "shuffle": False, "inputs": 2, "log_every": 1}
    with pytest.raises(StateRefused, match=words):
        fitted(**{"train": CARRIED, **common, **options}, callbacks=[before.append])
    assert not before


def test_a_carried_state_is_not_evaluated_on_plain_windows():
    made = trainer(model=Carrying, batch_size=5, inputs=2)
    with pytest.raises(StateRefused, match="validation data of Windows"):
        made.evaluate(Windows(SERIES, 4, TARGETS))
    with pytest.raises(StateRefused, match=r"fresh is torch\.float32, not bool"):
        made.model(torch.zeros(5, 4, 3), torch.zeros(5, 1))


def test_rejects_an_optimizer_that_needs_a_closure():
    with pytest.raises(BadRecipe, match=r"LBFGS\.step needs a closure .* use torch\.optim\.AdamW, Adam or SGD"):
        trainer(optimizer=torch.optim.LBFGS)


class Words(nn.Module):
    def __init__(self, by_layer=True):
        super().__init__()
        self.words, self.head, self.by_layer = nn.Embedding(9, 4, sparse=by_layer), nn.Linear(4, 1), by_layer

    def forward(self, rows):
        found = self.words(rows) if self.by_layer else nn.functional.embedding(rows, self.words.weight, sparse=True)
        return self.head(found)


ROWS = Rows(torch.arange(70) % 9, torch.zeros(70, 1))


@pytest.mark.parametrize("by_layer", [True, False])
def test_rejects_clipping_of_sparse_gradients(by_layer):
    before, options = [], {"optimizer": torch.optim.SGD, "clip": 1.0, "log_every": 1, "train": ROWS, "valid": ROWS}
    whose = " of words" if by_layer else ""
    with pytest.raises(
        BadRecipe, match=f"clip=1.0, but the gradients{whose} are sparse, .*sparse=False, or leave clip"
    ):
        fitted(model=lambda: Words(by_layer), callbacks=[before.append], **options)
    assert not before
    if by_layer:
        fitted(model=Words, **{**options, "clip": None})
        fitted(model=Words, phases=(Phase(3, frozen=("words",)),), **options)


def test_only_a_fused_optimizer_clips_in_its_kernel():
    optimizer, gpu = torch.optim.Adam([nn.Parameter(torch.zeros(2))]), torch.device("cuda")
    make_fast(optimizer, torch.device("cpu"), capturable=False, fuse=False)  # as for sparse gradients
    assert not can_clip(optimizer, gpu)
    make_fast(optimizer, torch.device("cpu"), capturable=False)
    assert can_clip(optimizer, gpu)


def test_rejects_data_that_ends_early():
    class Short(Stream):
        def batches(self, *how):
            return list(super().batches(*how))[:-1]

    with pytest.raises(DataMismatch, match="the data ended early: 0 of the 1 batches of step 5"):
        fitted(train=Short(*numbers()))


def test_a_custom_step_gives_the_validation_loss():
    def step(model, batch):
        return (model(batch[0] * 2) - batch[1]).square().mean()

    valid = numbers(rows=21, seed=1)  # batches of 16 and of 5
    made, history = fitted(step=step, loss=None, metrics={}, valid=Rows(*valid))
    made.model.eval()
    with torch.no_grad():
        expected = float(step(made.model, valid))
    assert history.epochs[-1].scores == {"valid_loss": pytest.approx(expected, rel=1e-5)}


def test_a_module_in_evaluation_mode_stays_in_it_and_every_random_stream_is_seeded():
    import random

    import numpy as np

    drawn = []

    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(6, 1), nn.BatchNorm1d(6)
            self.norm.eval()

        def forward(self, inputs):
            drawn.append((random.random(), np.random.rand()))
            return self.layer(self.norm(inputs))

    made, _ = fitted(model=Drawing, epochs=1)
    assert torch.equal(made.model.norm.running_mean, torch.zeros(6))
    first, drawn[:] = list(drawn), []
    fitted(model=Drawing, epochs=1)
    assert drawn == first


def test_a_metric_decides_which_direction_is_better():
    inputs, targets = numbers(200)
    train = Rows(inputs, (targets > 0).float())
    metrics = {"f1": BinaryF1(of=lambda outputs, target: (outputs > 0.5, target))}
    _, history = fitted(epochs=6, train=train, valid=train, metrics=metrics, patience=5, rate=0.05)
    scores = [record.scores["f1"] for record in history.epochs]
    assert history.best_epoch == scores.index(max(scores)) + 1 > 1
