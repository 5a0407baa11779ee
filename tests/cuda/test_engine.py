"""The engine on a GPU: a step replayed as one graph trains bit for bit like the plain step, and nothing waits."""

from __future__ import annotations

import gc
import itertools
import os
import signal

import pytest
import torch
from torch import nn

from hotlap.engine import BinaryF1, Checkpoints, Cosine, GroupMeans, Mean, Phase, checkpoints, choice
from hotlap.engine.data import Tensors
from hotlap.engine.errors import CaptureFailed, NonFiniteLoss
from hotlap.engine.order import epoch_order
from hotlap.engine.run import Run
from tests.engine.training import Net, Rows, Stream, numbers, outcome, same, trainer

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def repeatable(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def fitted(epochs=3, train=None, valid=None, resume=False, **options):
    made = trainer(device="cuda", **options)
    source = train if train is not None else Rows(*numbers(device="cuda"))
    history = made.fit(source, valid or Rows(*numbers(seed=1, device="cuda")), epochs, resume)
    return made, history


def both(**options):
    graphed = fitted(graph="on", **options)
    assert graphed[1].mode.startswith("one CUDA graph")
    return graphed, fitted(graph="off", **options)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, inputs):
        return self.head(self.lstm(inputs.view(-1, 3, 2))[0][:, -1])


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, (3, 2), padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.LazyLinear(1)
        self(torch.zeros(2, 6))

    def forward(self, inputs):
        return self.head(self.norm(self.convolution(inputs.view(-1, 1, 3, 2))).relu().flatten(1))


def momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip": 0.5, "ema": 0.9},
        {"accumulate": 3},
        {"drop_last": True, "optimizer": torch.optim.AdamW},
        {"precision": "fp32"},
        {"precision": "bf16"},
        {"precision": "fp16", "clip": 0.5},
        {"precision": "fp16"},
        {"model": Recurrent, "clip": 0.5},
        {"model": Convolutional, "channels_last": True},
        {"train_metrics": {"error": Mean(lambda o, t: (o - t).square().mean())}},
        {"loss": lambda o, t: {"a": (o - t).square().mean(), "b": (o - t).abs().mean()}, "loss_weights": {"a": 2.0}},
        {"phases": (Phase(2, frozen=("body",)), Phase(1, fresh_optimizer=True))},
        {"train": Stream(*numbers())},
        {"train": Stream(*numbers()), "accumulate": 2},
        {"activation_checkpointing": ("head",)},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_a_replayed_step_trains_bit_for_bit_like_the_plain_step(options):
    """This covers dropout, running statistics, the short last batch and gradients of several batches."""
    graphed, plain = both(**options)
    same(outcome(*graphed), outcome(*plain))


class Deep(nn.Module):
    """Many small layers in a row, so that work in a lane overlaps with the steps of the backward that follow."""

    def __init__(self):
        super().__init__()
        widths = [6, *[64] * 6]
        layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(64, 1))

    def forward(self, inputs):
        return self.layers(inputs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip": 0.5, "ema": 0.9},
        {"accumulate": 3},
        {"model": Deep},
        {"model": Deep, "clip": 0.1, "optimizer": torch.optim.AdamW},
        {"model": Deep, "loss": lambda o, t: nn.functional.binary_cross_entropy_with_logits(o, (t > 0).float())},
        {"train": Stream(*numbers())},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_a_forked_step_trains_bit_for_bit_like_the_plain_step(options, monkeypatch):
    taken = itertools.count()
    monkeypatch.setattr(choice, "_seconds", lambda trial, run: 1.0 / (1 + next(taken)))
    forked = fitted(graph="on", epochs=30, **options)
    assert forked[1].mode == "one CUDA graph, forked"
    same(outcome(*forked), outcome(*fitted(graph="off", epochs=30, **options)))


@pytest.mark.parametrize("options", [{}, {"clip": 0.5}, {"drop_last": True}], ids=lambda options: "-".join(options))
def test_a_batch_gathered_during_the_previous_step_is_the_same_batch(options, monkeypatch):
    taken = itertools.count()
    monkeypatch.setattr(choice, "_seconds", lambda trial, run: 1.0 / (1 + next(taken)))
    inputs, targets = numbers(rows=700, device="cuda")
    options = {"train": Tensors(inputs, targets > 0, dtypes=(None, torch.float32)), "epochs": 30, **options}
    forked = fitted(graph="on", **options)
    assert forked[1].mode == "one CUDA graph, forked"
    same(outcome(*forked), outcome(*fitted(graph="off", **options)))


@pytest.mark.parametrize("optimizer", [momentum, torch.optim.RMSprop])
def test_other_optimizers_are_captured_too(optimizer):
    """A learning rate in a tensor uses other kernels than a number, so results are close but not equal."""
    graphed, plain = both(optimizer=optimizer)
    for parameter, expected in zip(graphed[0].model.parameters(), plain[0].model.parameters(), strict=True):
        assert torch.allclose(parameter, expected, atol=1e-5)


def test_a_step_that_cannot_be_captured_is_reported_and_runs_eagerly():
    def dampened(parameters, lr):
        return torch.optim.SGD(parameters, lr=lr, momentum=0.9, dampening=0.1)

    with pytest.raises(CaptureFailed, match="SGD with dampening reads its learning rate on the host; use"):
        fitted(graph="on", optimizer=dampened)
    said = []
    left_alone = fitted(graph="auto", optimizer=dampened, say=said.append)
    assert said[0] == "step: no CUDA graph, SGD with dampening reads its learning rate on the host"
    same(outcome(*left_alone), outcome(*fitted(graph="off", optimizer=dampened)))


def test_rates_change_within_an_epoch_without_a_new_capture():
    graphed, plain = both(schedule=Cosine(), warmup=4, model=lambda: nn.Linear(6, 1))
    assert torch.allclose(graphed[0].model.weight, plain[0].model.weight, atol=1e-5)
    assert graphed[0].optimizer.param_groups[0]["lr"] == plain[0].optimizer.param_groups[0]["lr"]


def test_dropout_draws_anew_at_each_replay():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, inputs):
            return nn.functional.dropout(torch.ones_like(inputs), 0.5).mean() + 0 * self.weight

    seen = []
    fitted(
        model=Dropped, loss=lambda outputs, targets: outputs.mean(), graph="on", drop_last=True, epochs=10,
        metrics={}, evaluate=lambda model: {"none": 0.0}, callbacks=[lambda record: seen.append(record.loss)],
    )  # fmt: skip
    assert len(set(seen)) > 6


def test_nothing_waits_for_the_device_within_an_epoch(monkeypatch, tmp_path):
    """The check starts with the second epoch, as the first one captures; losses are read and checkpoints written."""
    begin, read_losses = Run.begin, Run.read_losses

    def strict_begin(run, epoch):
        torch.cuda.set_sync_debug_mode("error" if epoch else "default")
        begin(run, epoch)

    def read(run):
        torch.cuda.set_sync_debug_mode("default")
        return read_losses(run)

    monkeypatch.setattr(Run, "begin", strict_begin)
    monkeypatch.setattr(Run, "read_losses", read)
    options = {"clip": 0.5, "schedule": Cosine(), "log_every": 1, "checkpoints": Checkpoints(tmp_path, replace=True)}
    try:
        for precision in ("tf32", "fp16"):
            fitted(graph="on", precision=precision, **options)
            fitted(graph="off", precision=precision, **options)
        fitted(graph="on", accumulate=2, ema=0.9)
    finally:
        torch.cuda.set_sync_debug_mode("default")


REPLAY = 2  # kernels that torch launches before a graph with random numbers, to set its seed and offset


def test_a_step_is_one_launch():
    made = trainer(device="cuda", graph="on", clip=0.5, log_every=1000, drop_last=True)
    data = Rows(*numbers(rows=1600, device="cuda"))
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])

    def watch(record):
        profiler.start() if record.epoch == 1 else profiler.stop()

    made.callbacks.append(watch)
    made.fit(data, epochs=2)
    counts = {event.key: event.count for event in profiler.key_averages()}
    assert counts["cudaGraphLaunch"] == 100
    assert counts.get("cudaLaunchKernel", 0) - REPLAY * 100 < 60  # order, losses and the checks around the epoch


def test_half_precision_skips_a_step_whose_gradients_overflow():
    inputs, targets = numbers(device="cuda")
    options = {"train": Rows(inputs, targets * 100), "precision": "fp16", "model": lambda: nn.Linear(6, 1)}
    graphed, plain = both(**options)
    same(outcome(*graphed), outcome(*plain))
    steps = {int(state["step"]) for state in graphed[0].optimizer.state.values()}
    assert len(steps) == 1
    assert 0 < steps.pop() < 15


@pytest.mark.parametrize("log_every", [200, 1])
def test_a_nan_loss_names_the_step_and_the_last_good_checkpoint(tmp_path, log_every):
    inputs, targets = numbers(device="cuda")
    order = epoch_order(70, 0, 1, torch.device("cuda"))

    def poison(record):
        if getattr(record, "scores", None) is not None:
            targets[order[20]] = float("nan")  # in the second batch of the second epoch

    with pytest.raises(NonFiniteLoss, match=r"nan at step 7 \(epoch 2\); last good checkpoint: .*last\.pt") as caught:
        fitted(
            train=Rows(inputs, targets), callbacks=[poison], graph="on", log_every=log_every,
            checkpoints=Checkpoints(tmp_path),
        )  # fmt: skip
    state = checkpoints.load(caught.value.checkpoint)
    assert all(weight.isfinite().all() for weight in state["model"].values())


WITH_STATE = {
    "plain": {},
    "schedule": {"schedule": Cosine(), "warmup": 3},
    "ema": {"ema": 0.9},
    "fp16": {"precision": "fp16"},
    "accumulate": {"accumulate": 2},
    "phases": {"phases": (Phase(1, frozen=("body",)), Phase(2))},
    "recurrent": {"model": Recurrent},
}


@pytest.mark.parametrize("graph", ["on", "off"])
@pytest.mark.parametrize("options", WITH_STATE.values(), ids=WITH_STATE.keys())
def test_resuming_mid_epoch_is_bit_exact(tmp_path, options, graph):
    def interrupt(record):
        if getattr(record, "step", 0) >= 5:
            os.kill(os.getpid(), signal.SIGINT)

    often = Checkpoints(tmp_path, steps=2)
    made = trainer(device="cuda", graph=graph, callbacks=[interrupt], checkpoints=often, **options)
    with pytest.raises(KeyboardInterrupt):
        made.fit(Rows(*numbers(device="cuda")), Rows(*numbers(seed=1, device="cuda")), 3)
    torch.manual_seed(77)
    resumed = fitted(resume=True, graph=graph, checkpoints=Checkpoints(tmp_path), **options)
    same(outcome(*resumed), outcome(*fitted(graph=graph, **options)))


def test_a_checkpoint_holds_the_state_of_its_moment(tmp_path):
    weights = []

    def look(record):
        if getattr(record, "scores", None) is not None:
            weights.append(made.model.head.weight.detach().cpu().clone())

    made = trainer(device="cuda", graph="on", callbacks=[look], checkpoints=Checkpoints(tmp_path, every=1))
    made.fit(Rows(*numbers(device="cuda")), epochs=5)
    for epoch, weight in enumerate(weights, start=1):
        assert torch.equal(checkpoints.load(tmp_path / f"epoch-{epoch:04d}.pt")["model"]["head.weight"], weight)


class Reads(Net):
    def forward(self, inputs):
        return super().forward(inputs) * (1.0 if inputs.sum().item() > -1e9 else 0.0)


def test_a_model_that_waits_for_the_device_is_trained_eagerly():
    """A failed capture leaves streams and random numbers usable."""
    said = []
    found = outcome(*fitted(model=Reads, say=said.append))
    assert "step: eager" in said[0]
    same(found, outcome(*fitted(model=Reads, graph="off")))
    with pytest.raises(CaptureFailed):
        fitted(model=Reads, graph="on")
    torch.rand(3, device="cuda")
    both()


def test_a_loss_the_user_keeps_does_not_spoil_the_training():
    """The autograd nodes of the loss belong to another stream than the capturing one."""
    made = trainer(device="cuda")
    made.model.cuda()
    inputs, targets = numbers(device="cuda")
    torch.manual_seed(3)
    clean = trainer(device="cuda", graph="off")
    loss = nn.functional.mse_loss(made.model.head(torch.ones(4, 12, device="cuda")), targets[:4])
    made.fit(Rows(inputs, targets), epochs=2)
    clean.fit(Rows(inputs, targets), epochs=2)
    assert loss.item() >= 0
    for parameter, expected in zip(made.model.parameters(), clean.model.parameters(), strict=True):
        assert torch.equal(parameter, expected)


def test_the_memory_of_a_training_is_released():
    def used():
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    fitted(graph="on", epochs=1)
    before = used()
    for _ in range(3):
        fitted(graph="on", epochs=1)
    assert used() <= before + 2**16


def test_group_metrics_on_the_device_match_their_definition():
    """The precision is float32, as the model computes outside a training; batches cut through groups."""
    inputs, targets = numbers(device="cuda")
    groups = torch.arange(70, device="cuda") // 7
    by_group = GroupMeans(10, of=lambda out, target, group: (out[:, 0], group), finish=lambda means: means.max())
    f1 = BinaryF1(of=lambda out, target, group: (out[:, 0], target[:, 0] > 0))
    options = {"precision": "fp32", "evaluation_batch": 16, "loss": lambda o, t, g: (o - t).square().mean()}
    made = trainer(device="cuda", metrics={"best": by_group, "f1": f1}, **options)
    data = Rows(inputs, targets, groups)
    made.fit(data, data, epochs=1)
    scores = made.evaluate(data)
    made.model.eval()
    with torch.no_grad():
        found = made.model(inputs)[:, 0]
    expected = found.view(10, 7).mean(1).max().item()
    hits, truth = found >= 0.5, targets[:, 0] > 0
    assert scores["best"] == pytest.approx(expected, rel=1e-4)
    assert scores["f1"] == pytest.approx(2 * (hits & truth).sum().item() / (hits.sum() + truth.sum()).item())


def test_a_compiled_step_can_be_captured():
    _, history = fitted(graph="on", compile="on", epochs=3)
    assert history.mode == "one CUDA graph, compiled"
    _, plain = fitted(graph="off", compile="off", epochs=3)
    assert history.last.loss == pytest.approx(plain.last.loss, rel=0.05)
