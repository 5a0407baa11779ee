"""Precision measured on a GPU, in the way the training runs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hotlap.engine import Checkpoints, PrecisionGate, Recipe, Trainer
from tests.engine.training import Cut, cut_at, outcome, same

pytestmark = pytest.mark.cuda


class Net(nn.Module):
    """Products large enough to gain from half precision, behind a recurrent layer, which does not always."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(8, 64, batch_first=True)
        self.body = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1))

    def forward(self, window):
        return self.body(self.rnn(window)[0][:, -1])


def rows():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4096, 30, 8, generator=generator)
    return inputs.cuda(), inputs.mean((1, 2)).unsqueeze(1).cuda()


def made(**recipe):
    torch.manual_seed(0)
    model, said = Net(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    options = Recipe(**{"batch_size": 512, "precision": "auto"} | recipe)
    trainer = Trainer(model, nn.functional.mse_loss, optimizer, options, device="cuda", say=said.append)
    return trainer, said


def test_every_precision_is_timed_and_the_fastest_is_used():
    trainer, said = made()
    found = trainer.try_precisions(rows())
    recurrent = "with recurrent layers in float32"
    names = ["fp32", "tf32", f"bf16 {recurrent}", "bf16", f"fp16 {recurrent}", "fp16"]
    assert [trial.name for trial in found.trials] == names
    assert all(0 < trial.seconds < math.inf for trial in found.trials if trial.why_not is None)
    assert found.chosen.seconds <= min(trial.seconds for trial in found.trials if trial.why_not is None) / 0.95
    print(found.line)
    history = trainer.fit(rows(), epochs=2)
    assert history.last.loss < history.epochs[0].loss
    assert any(line.startswith("precision: ") for line in said)
    assert trainer.recipe.precision != "auto"


def test_a_gate_that_nothing_passes_leaves_float32():
    trainer, _ = made(precision_gate=PrecisionGate(steps=8, seeds=2, margin=0.0), seed=3)
    found = trainer.try_precisions(rows())
    low = [trial for trial in found.trials if trial.precision in ("bf16", "fp16") and trial.why_not is None]
    assert found.chosen.precision in ("fp32", "tf32") or found.chosen in low
    assert all("higher after 8 steps" in trial.why_not for trial in found.trials if trial.why_not and trial.seconds < 1)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_run_that_stopped_goes_on_in_its_precision_to_the_bit(precision, tmp_path):
    fixed = {"precision": precision, "full_precision": ("rnn",), "log_every": 1}
    trainer, _ = made(**fixed)
    whole = trainer, trainer.fit(rows(), epochs=2)
    trainer, _ = made(**fixed, checkpoints=Checkpoints(tmp_path, steps=1))
    trainer.callbacks.append(cut_at(11))
    with pytest.raises(Cut):
        trainer.fit(rows(), epochs=2)
    trainer, _ = made(log_every=1, checkpoints=Checkpoints(tmp_path))
    resumed = trainer, trainer.fit(rows(), epochs=2, resume=True)
    assert (trainer.recipe.precision, trainer.recipe.full_precision) == (precision, ("rnn",))
    same(outcome(*resumed), outcome(*whole))
