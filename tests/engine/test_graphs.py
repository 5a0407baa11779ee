"""A step replayed as one graph trains bit for bit like the plain step; the graph is emulated on the CPU (tape.py)."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import hotlap.engine.trainer
from hotlap.engine import Cosine, Mean, Phase
from hotlap.engine.errors import CaptureFailed
from tests.engine.tape import EmulatedRecorder
from tests.engine.training import Net, Rows, Stream, captured, fitted, numbers, outcome, same, trainer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip": 0.5, "ema": 0.9},
        {"accumulate": 3},
        {"drop_last": True, "optimizer": torch.optim.AdamW},
        {"precision": "bf16"},
        {"precision": "fp16", "clip": 0.5},
        {"optimizer": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True)},
        {"train_metrics": {"error": Mean(lambda o, t: (o - t).square().mean())}},
        {"loss": lambda o, t: {"a": (o - t).square().mean(), "b": (o - t).abs().mean()}, "loss_weights": {"a": 2.0}},
        {"phases": (Phase(2, frozen=("body",)), Phase(1))},
        {"train": Stream(*numbers())},
        {"train": Stream(*numbers()), "accumulate": 2},
        {"schedule": Cosine(by="epoch")},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_a_replayed_step_trains_bit_for_bit_like_the_plain_step(options, monkeypatch):
    """This covers dropout, running statistics, the short last batch and gradients of several batches."""
    made, history = captured(monkeypatch, **options)
    assert history.mode == "one CUDA graph"
    if "schedule" in options:  # a rate on the device has the digits of a float32
        plain, _ = fitted(**options)
        pairs = zip(made.model.parameters(), plain.model.parameters(), strict=True)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)
        return
    same(outcome(made, history), outcome(*fitted(**options)))


def dampened(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, dampening=0.1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"optimizer": dampened}, "SGD with dampening reads its learning rate on the host"),
        ({"optimizer": torch.optim.Adagrad}, "Adagrad reads its learning rate on the host"),
        (
            {"model": lambda: nn.Sequential(nn.Embedding(10, 1, sparse=True), nn.Flatten(1)), "rows": True},
            "the gradients are sparse",
        ),
    ],
)
def test_a_step_that_cannot_be_captured_is_reported_and_runs_eagerly(options, why, monkeypatch):
    options, said = dict(options), []
    if options.pop("rows", False):
        splits = {name: Rows(torch.arange(64) % 10, torch.ones(64, 1)) for name in ("train", "valid")}
        options |= {**splits, "optimizer": torch.optim.SGD}
    with pytest.raises(CaptureFailed, match=f"cannot be captured: {why}; use graph="):
        fitted(recorder=EmulatedRecorder(), monkeypatch=monkeypatch, graph="on", **options)
    trained = outcome(*fitted(recorder=EmulatedRecorder(), monkeypatch=monkeypatch, say=said.append, **options))
    assert said[0] == f"step: no CUDA graph, {why}"
    same(trained, outcome(*fitted(graph="off", **options)))


def test_rates_change_within_an_epoch_without_a_new_capture(monkeypatch):
    recorder = EmulatedRecorder()
    options = {"schedule": Cosine(), "warmup": 4, "model": lambda: nn.Linear(6, 1)}
    made, _ = fitted(recorder=recorder, monkeypatch=monkeypatch, graph="on", **options)
    plain, _ = fitted(**{**options, "graph": "off"})
    assert recorder.captures == 2  # full batches, and the short last one
    assert torch.allclose(made.model.weight, plain.model.weight, atol=1e-5)
    assert made.optimizer.param_groups[0]["lr"] == plain.optimizer.param_groups[0]["lr"]


def test_half_precision_skips_a_step_whose_gradients_overflow(monkeypatch):
    """Scaled by 65536, the gradients of large targets exceed the range of float16."""
    inputs, targets = numbers()
    options = {"train": Rows(inputs, targets * 100), "precision": "fp16", "model": lambda: nn.Linear(6, 1)}
    made, _ = captured(monkeypatch, **options)
    steps = {int(state["step"]) for state in made.optimizer.state.values()}
    assert len(steps) == 1
    assert 0 < steps.pop() < 15
    assert all(parameter.isfinite().all() for parameter in made.model.parameters())


def test_choosing_leaves_no_trace(monkeypatch):
    """The measurement uses real batches and then restores everything, as if nothing had been tried."""
    said = []
    recorder = EmulatedRecorder()
    found = outcome(*fitted(recorder=recorder, monkeypatch=monkeypatch, ema=0.9, say=said.append))
    monkeypatch.undo()
    same(found, outcome(*fitted(ema=0.9)))
    assert len(said) == 1
    assert "one CUDA graph" in said[0]
    assert "eager" in said[0]
    assert " ms" in said[0]


class Reads(Net):
    def forward(self, inputs):
        return super().forward(inputs) * (1.0 if inputs.sum().item() > -1e9 else 0.0)


class Counts(Net):
    calls = 0

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs)


class Draws(Net):
    def forward(self, inputs):
        return super().forward(inputs) * (1.0 + 0.0 * random.random())


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Reads, "a value is read on the host"),
        (Counts, "forward changes the attribute calls of the model"),
        (Draws, "forward draws random numbers on the host"),
    ],
)
def test_a_model_that_cannot_be_replayed_is_trained_eagerly(model, why, monkeypatch):
    said = []
    random.seed(1)
    found = outcome(*fitted(recorder=EmulatedRecorder(), monkeypatch=monkeypatch, model=model, say=said.append))
    assert "step: eager" in said[0]
    assert why in said[0]
    monkeypatch.undo()
    random.seed(1)
    same(found, outcome(*fitted(model=model)))
    with pytest.raises(CaptureFailed, match=why):
        fitted(recorder=EmulatedRecorder(), monkeypatch=monkeypatch, model=model, graph="on")


def test_a_replay_that_trains_differently_is_not_used(monkeypatch):
    class Lazy(EmulatedRecorder):
        def capture(self, work):
            super().capture(work)
            return lambda: None

    said = []
    _, history = fitted(recorder=Lazy(), monkeypatch=monkeypatch, say=said.append)
    assert history.mode == "eager"
    assert "a replay trains differently from the step itself (by 100% of its update)" in said[0]


def test_a_custom_optimizer_is_not_captured(monkeypatch):
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["lr"] * parameter.grad

    recorder = EmulatedRecorder()
    _, history = fitted(recorder=recorder, monkeypatch=monkeypatch, optimizer=Own)
    assert recorder.captures == 0
    assert history.epochs[-1].loss < history.epochs[0].loss


def test_batches_of_changing_shape_run_eagerly_and_are_reported_once(monkeypatch):
    def shortened(number, batch):
        return (
            tuple(tensor[:, :3] if tensor.shape[1] > 1 else tensor for tensor in batch) if number in (2, 3) else batch
        )

    class AnyWidth(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, inputs):
            return self.layer(inputs.mean(dim=1, keepdim=True))

    said = []
    options = {"model": AnyWidth, "say": said.append, "train": Stream(*numbers(), altered=shortened)}
    found = outcome(*captured(monkeypatch, **options))
    assert [line for line in said if "shapes change" in line] == [
        "shapes change within the epoch ((16, 3), (16, 1) after (16, 6), (16, 1)): such batches run eagerly"
    ]
    monkeypatch.undo()
    same(found, outcome(*fitted(**options)))


def test_a_phase_gets_a_capture_of_its_own(monkeypatch):
    recorder = EmulatedRecorder()
    phases = (Phase(1, frozen=("body",)), Phase(1))
    fitted(recorder=recorder, monkeypatch=monkeypatch, graph="on", phases=phases, epochs=2, drop_last=True)
    assert recorder.captures == 2


def test_a_second_fit_continues_the_first(monkeypatch):
    monkeypatch.setattr(hotlap.engine.trainer, "recorder_for", lambda device: EmulatedRecorder())
    graphed, plain = trainer(graph="on"), trainer(graph="off")
    for made in (graphed, plain):
        made.fit(Rows(*numbers()), epochs=1)
        made.fit(Rows(*numbers()), epochs=1)
    pairs = zip(graphed.model.state_dict().values(), plain.model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
