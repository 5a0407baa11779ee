"""A precision chosen by measurement, on the training's own step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hotlap.engine import Checkpoints, PrecisionGate, Precisions, PrecisionTrial, Recipe, Trainer, precision
from hotlap.engine.errors import BadRecipe
from hotlap.engine.precision import candidates, in_float32, times_slower, upper_bound
from hotlap.engine.recurrent import Recurrent
from tests.engine.training import Cut, cut_at, fitted, numbers, outcome, same, trainer

INPUTS, TARGETS = numbers()


def trials(**milliseconds):
    return tuple(PrecisionTrial(name, seconds=value / 1000) for name, value in milliseconds.items())


def test_what_is_more_exact_wins_unless_the_other_is_clearly_faster():
    assert Precisions(trials(fp32=1.0, bf16=0.97)).chosen.precision == "fp32"
    assert Precisions(trials(fp32=2.0, tf32=1.5, bf16=1.0, fp16=0.99)).chosen.precision == "bf16"
    left_out = PrecisionTrial("bf16", why_not="a product of matrices takes 90 times as long")
    found = Precisions((*trials(fp32=2.0), left_out))
    assert found.line == "precision: fp32 (fp32 2 ms; bf16 left out: a product of matrices takes 90 times as long)"


def test_a_model_with_recurrent_layers_is_tried_with_these_in_float32():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 1)

    names = [trial.name for trial in candidates(Net(), torch.device("cuda"))]
    recurrent = "with recurrent layers in float32"
    assert names == ["fp32", "tf32", f"bf16 {recurrent}", "bf16", f"fp16 {recurrent}", "fp16"]
    assert [trial.precision for trial in candidates(nn.Linear(1, 1), torch.device("cpu"))] == ["fp32", "bf16", "fp16"]


def told(monkeypatch, slower=math.inf, **seconds):
    """Let steps take the time that is told rather than measured; return in which precisions steps of full size ran."""
    tried = []

    def fitted_in(trainer, data, trial, steps):
        tried.append(trial.precision)
        if trial.precision not in seconds:
            raise RuntimeError("not implemented for 'Half'\nmore")
        return seconds[trial.precision]

    monkeypatch.setattr(precision, "times_slower", lambda device, dtype: slower)
    monkeypatch.setattr(precision, "_step_seconds", lambda *given: 1.0)
    monkeypatch.setattr(precision, "_fitted", fitted_in)
    return tried


def test_a_processor_without_fast_bf16_tries_no_whole_step_in_it(monkeypatch):
    tried, said = told(monkeypatch, slower=100.0, fp32=1.0), []
    made = trainer(precision="auto", say=said.append, threads=1)
    made.fit((INPUTS, TARGETS), epochs=1)
    assert set(tried) == {"fp32"}
    assert made.recipe.precision == "fp32"
    assert "precision: fp32 (fp32 1e+03 ms; bf16 left out: a product of matrices takes 100 times as long" in said[1]


def test_an_operation_that_a_precision_lacks_leaves_it_out(monkeypatch):
    told(monkeypatch, slower=1.0, fp32=1.0, bf16=0.5)
    made = trainer(precision="auto")
    found = made.try_precisions((INPUTS, TARGETS))
    assert found.chosen.precision == "bf16"
    assert found.trials[-1].why_not == "not implemented for 'Half'"
    assert made.recipe.precision == "auto"


def test_an_error_of_the_step_itself_is_passed_on(monkeypatch):
    told(monkeypatch, slower=1.0, bf16=0.5)
    with pytest.raises(RuntimeError, match="not implemented"):
        trainer(precision="auto").try_precisions((INPUTS, TARGETS))


def test_measuring_changes_neither_weights_nor_random_numbers(answering, constants):
    constants(precision, SECONDS=0.02)
    answering(precision, times_slower=100.0)
    found = fitted(precision="auto", threads=1, onednn="off")
    same(outcome(*found), outcome(*fitted(precision="fp32", threads=1, onednn="off")))


def test_real_steps_are_timed_in_float32_and_below(constants):
    constants(precision, SECONDS=0.01, FAR_SLOWER=math.inf)
    found = trainer(precision="auto", threads=1).try_precisions((INPUTS, TARGETS))
    assert [trial.precision for trial in found.trials] == ["fp32", "bf16", "fp16"]
    assert all(0 < trial.seconds < math.inf for trial in found.trials if trial.why_not is None)
    assert found.chosen in found.trials
    assert times_slower(torch.device("cpu"), torch.float32) < 100


def test_a_gate_leaves_out_what_trains_worse(monkeypatch):
    told(monkeypatch, slower=1.0, fp32=1.0, bf16=0.2, fp16=0.1)
    monkeypatch.setattr(precision, "_short", lambda trainer, recipe, data, epochs: History(recipe))
    gate = PrecisionGate(steps=8, seeds=3, margin=0.05)

    class Record:
        def __init__(self, loss):
            self.loss = loss

    class History:
        def __init__(self, recipe):
            worse = {"fp32": 0.0, "bf16": 0.01, "fp16": 0.2}[recipe.precision]
            self.epochs = [Record(9.0)] * 2 + [Record((1 + worse) * (1 + recipe.seed / 10))] * 2

    found = trainer(precision="auto", precision_gate=gate).try_precisions((INPUTS, TARGETS))
    assert found.chosen.precision == "bf16"
    assert found.trials[-1].why_not == "its loss may be 20.0% higher after 8 steps, over 3 seeds"


def test_a_gate_trains_real_copies(monkeypatch):
    told(monkeypatch, slower=1.0, fp32=1.0, bf16=0.2)
    for margin, chosen in ((5.0, "bf16"), (0.0, "fp32")):
        gate = PrecisionGate(steps=8, seeds=2, margin=margin)
        made = trainer(precision="auto", precision_gate=gate, threads=1)
        assert made.try_precisions((INPUTS, TARGETS)).chosen.precision == chosen


def test_the_bound_grows_with_the_noise_and_fails_closed():
    assert upper_bound([0.01, 0.01, 0.01]) == pytest.approx(0.01)
    assert upper_bound([0.0, 0.02, 0.01]) > 0.02
    assert upper_bound([0.0, math.nan]) == math.inf


def test_a_resumed_run_keeps_the_precision_it_was_trained_in(monkeypatch, tmp_path):
    told(monkeypatch, slower=1.0, fp32=1.0, bf16=0.2)
    whole = fitted(precision="bf16", threads=1, onednn="off")
    options = {"precision": "auto", "threads": 1, "onednn": "off", "log_every": 1}
    with pytest.raises(Cut):
        fitted(**options, callbacks=[cut_at(3)], checkpoints=Checkpoints(tmp_path, steps=1))
    told(monkeypatch, slower=100.0, fp32=1.0)  # as another machine would choose
    resumed = fitted(**options, checkpoints=Checkpoints(tmp_path), resume=True)
    assert resumed[0].recipe.precision == "bf16"
    same(outcome(*resumed), outcome(*whole))


def test_named_modules_stay_in_float32():
    seen = {}

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 1)

        def forward(self, inputs):
            seen["first"] = self.first(inputs)
            seen["second"] = self.second(seen["first"].relu())
            return seen["second"]

    made = trainer(model=Net(), precision="bf16", full_precision=("second",), threads=1)
    made.fit((INPUTS, TARGETS), epochs=1)
    assert (seen["first"].dtype, seen["second"].dtype) == (torch.bfloat16, torch.float32)
    assert "forward" not in vars(made.model.second)
    with (
        pytest.raises(BadRecipe, match="full_precision names 'third', which the model does not have"),
        in_float32(made.model, ("third",), torch.device("cpu")),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp8"}, "precision='fp8'; use one of auto, fp32, tf32, bf16, fp16"),
        ({"precision": "bf16", "precision_gate": PrecisionGate()}, 'precision_gate needs precision="auto"'),
        ({"full_precision": "rnn"}, r"full_precision='rnn'; use a tuple of names: \('rnn',\)"),
    ],
)
def test_refuses_what_makes_no_sense(options, message):
    with pytest.raises(BadRecipe, match=message):
        Recipe(batch_size=4, **options)


def test_a_carried_state_cannot_be_measured():
    model = Recurrent("gru", 2, 3, state="carry", lanes=4)
    made = Trainer(model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 0.1), Recipe(batch_size=4))
    with pytest.raises(BadRecipe, match="cannot measure a model that carries a state"):
        precision.tried(made, None)
