"""Weight gradients and losses computed in lanes beside the backward: the training stays the same, without races.

The lanes are emulated (tape.py); tests/cuda/test_engine.py runs them on a GPU.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.engine import RMSE, Checkpoints, Mean, Phase, choice, next_batch, recorder
from hotlap.engine.data import Tensors, mapped
from hotlap.engine.forks import Forks, NothingToFork
from hotlap.engine.optimizers import Clipping
from hotlap.engine.run_state import as_list
from tests.engine.tape import EmulatedLanes, EmulatedRecorder, Watched
from tests.engine.training import Cut, Net, Stream, cut_at, fitted, numbers, outcome, same


def forked(monkeypatch, **options):
    """Train with a forked graph, which is made to win the measurement."""
    lanes = EmulatedLanes()
    recorder = EmulatedRecorder(lanes)
    monkeypatch.setattr(choice, "_seconds", lambda trial, run: 1.0 / recorder.captures)
    found = fitted(recorder=recorder, monkeypatch=monkeypatch, graph="on", **options)
    return found, lanes


def shared():
    """A model with one layer used twice, whose gradients autograd adds up."""
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, inputs):
        return self.head(self.layer(inputs)) + self.layer.weight.square().mean()


class Sequences(nn.Module):
    """Layers over the last of three dimensions, one without a bias."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(2, 5, bias=False), nn.Linear(5, 1)

    def forward(self, inputs):
        return self.head(self.body(inputs.view(-1, 3, 2)).relu()).mean(1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip": 0.5, "ema": 0.9},
        {"accumulate": 3},
        {"drop_last": True, "optimizer": torch.optim.AdamW},
        {"precision": "fp32"},
        {"model": shared},
        {"model": Tied},
        {"model": Sequences},
        {"loss": lambda o, t: nn.functional.binary_cross_entropy_with_logits(o, (t > 0).float())},
        {"loss": lambda o, t: 2 * nn.functional.mse_loss(o, t)},
        {"loss": lambda o, t: {"a": nn.functional.mse_loss(o, t), "b": (o - t).abs().mean()}},
        {"loss": lambda o, t: nn.functional.mse_loss(o, t, reduction="sum")},
        {"train_metrics": {"error": Mean(lambda o, t: (o - t).square().mean())}},
        {"phases": (Phase(2, frozen=("body",)), Phase(1))},
        {"train": Stream(*numbers())},
        {"train": Stream(*numbers()), "accumulate": 2},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_a_forked_step_trains_bit_for_bit_like_the_plain_step(options, monkeypatch):
    (made, history), lanes = forked(monkeypatch, **options)
    monkeypatch.undo()
    assert history.mode == "one CUDA graph, forked"
    assert lanes.forks > 0
    same(outcome(made, history), outcome(*fitted(**options)))


# Gathering the next batch during the step


def bits(rows=70):
    """Data stored as bool and cast after the gather, which takes two kernels per tensor."""
    values = torch.rand(rows, 8, generator=torch.Generator().manual_seed(0)) > 0.5
    return Tensors(values, values[:, :1], dtypes=(torch.float32, torch.float32))


@pytest.fixture
def fetches(spied):
    """A list that grows by one with every next batch that is fetched."""
    return spied(next_batch.Ahead, "fetch")


GATHERED = [
    {},
    {"epochs": 1},
    {"shuffle": False},
    {"drop_last": True},
    {"batch_size": 35},
    {"batch_size": 70, "epochs": 4},
    {"clip": 0.1, "ema": 0.9},
    {"train_metrics": {"error": Mean(lambda o, t: (o - t).square().mean())}},
    {"phases": (Phase(2, frozen=("body",)), Phase(1))},
    {"train": bits(), "valid": bits(20), "model": lambda: nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1)),
     "loss": nn.functional.binary_cross_entropy_with_logits},
]  # fmt: skip


@pytest.mark.parametrize("options", GATHERED, ids=lambda options: "-".join(options) or "plain")
def test_a_batch_gathered_during_the_previous_step_is_the_same_batch(options, fetches, monkeypatch):
    options = {"train": Tensors(*numbers()), **options}
    (made, history), _ = forked(monkeypatch, **options)
    monkeypatch.undo()
    assert history.mode == "one CUDA graph, forked"
    assert fetches
    same(outcome(made, history), outcome(*fitted(**options)))


@pytest.mark.parametrize("stopped", [2, 4, 5, 8])
def test_a_training_resumed_mid_epoch_starts_with_the_right_batch(stopped, fetches, monkeypatch, tmp_path):
    options = {"train": Tensors(*numbers()), "epochs": 2}
    checkpoints = Checkpoints(tmp_path, steps=1)
    with pytest.raises(Cut):
        forked(monkeypatch, **options, checkpoints=checkpoints, callbacks=[cut_at(stopped)], log_every=1)
    (made, history), _ = forked(monkeypatch, **options, checkpoints=checkpoints, resume=True)
    monkeypatch.undo()
    assert fetches
    same(outcome(made, history), outcome(*fitted(**options)))


@pytest.mark.parametrize(
    "options",
    [
        {"train": mapped(Tensors(*numbers()), lambda x, y: (x + torch.randn_like(x), y))},
        {"train": Tensors(*numbers()), "accumulate": 2},
        {"train": Stream(*numbers())},
    ],
    ids=["may draw random numbers", "several batches a step", "streamed"],
)
def test_other_data_is_gathered_by_the_step_itself(options, fetches, monkeypatch):
    (made, history), _ = forked(monkeypatch, **options)
    monkeypatch.undo()
    assert history.mode == "one CUDA graph, forked"
    assert not fetches
    same(outcome(made, history), outcome(*fitted(**options)))


def test_the_emulated_lanes_notice_a_write_to_what_another_lane_reads():
    lanes, values = EmulatedLanes(), torch.ones(3)
    with Watched(lanes):
        with lanes.beside(0):
            values.square()
        with pytest.raises(AssertionError, match="writes what is read beside"):
            values.add_(1)
        lanes.join()
        values.add_(1)


@pytest.mark.parametrize(
    "options",
    [{"precision": "bf16"}, {"precision": "fp16"}, {"activation_checkpointing": ("head",)}],
    ids=lambda options: next(iter(options)),
)
def test_nothing_is_forked_under_casting_or_recomputation(options, monkeypatch):
    (_, history), lanes = forked(monkeypatch, **options)
    assert history.mode == "one CUDA graph"
    assert lanes.forks == 0


def test_a_model_without_layers_to_fork_is_captured_as_it_is(monkeypatch):
    said = []
    scale = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(6))
    error = RMSE(of=lambda outputs, target: (outputs.mean(1, keepdim=True), target))
    options = {"model": scale, "loss": lambda o, t: (o.mean(1, keepdim=True) - t).square().mean(), "say": said.append}
    options["metrics"] = {"rmse": error}
    (_, history), _ = forked(monkeypatch, **options)
    assert history.mode == "one CUDA graph"
    assert "forked" not in said[0]


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 1)
        self.alone = nn.Parameter(torch.ones(6))

    def forward(self, inputs):
        return self.second(self.first(inputs) * self.alone)


def losses_of(model, loss=nn.functional.mse_loss):
    inputs, targets = numbers()
    return lambda item: ({"loss": loss(model(inputs), targets)}, None, ())


def differentiate(forks):
    (losses, _, _) = forks(None)
    losses["loss"].backward(forks.unit)
    forks.join()
    return losses["loss"]


def test_the_first_pass_determines_what_is_forked():
    model, lanes = Wide(), EmulatedLanes()
    forks = Forks(lanes, model.parameters(), torch.ones(()), losses_of(model))
    differentiate(forks)
    assert lanes.forks == 0
    names = {name for name, parameter in model.named_parameters() if id(parameter) in forks.single}
    assert names == {"first.weight", "first.bias", "second.weight", "second.bias"}
    assert forks.final
    model.zero_grad()
    differentiate(forks)
    assert lanes.forks == 4  # a weight, two biases and the loss; the first layer's weight is the last of all
    assert not forks.held


def test_a_parameter_with_a_hook_is_left_to_autograd():
    model, seen = Wide(), []
    forks = Forks(EmulatedLanes(), model.parameters(), torch.ones(()), losses_of(model))
    model.first.weight.register_hook(seen.append)
    for _ in range(3):
        differentiate(forks)
    assert len(seen) == 3


def test_frozen_parameters_get_no_gradient():
    model = Wide()
    model.first.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    forks = Forks(EmulatedLanes(), trained, torch.ones(()), losses_of(model))
    for _ in range(2):
        differentiate(forks)
    assert model.first.weight.grad is None
    assert model.second.weight.grad is not None


def test_a_loss_that_the_program_inspects_is_not_forked():
    model, logged = Wide(), []

    def loss(outputs, targets):
        found = nn.functional.mse_loss(outputs, targets)
        logged.append(found.detach())
        return found

    forks = Forks(EmulatedLanes(), model.parameters(), torch.ones(()), losses_of(model, loss))
    differentiate(forks)
    assert not forks.final


def test_a_scaled_loss_has_scaled_gradients():
    model = Wide()
    forks = Forks(EmulatedLanes(), model.parameters(), torch.ones(()), losses_of(model))
    differentiate(forks)
    model.zero_grad()
    losses, _, _ = forks(None)
    losses["loss"].backward(torch.full((), 0.5))
    forks.join()
    half = model.second.weight.grad.clone()
    model.zero_grad()
    differentiate(forks)
    assert torch.allclose(half * 2, model.second.weight.grad)


def test_the_second_pass_raises_when_there_is_nothing_to_fork():
    model = nn.BatchNorm1d(6)
    loss_of = losses_of(model, lambda o, t: (o.mean(1, keepdim=True) - t).square().mean())
    forks = Forks(EmulatedLanes(), model.parameters(), torch.ones(()), loss_of)
    forks(None)
    with pytest.raises(NothingToFork):
        forks(None)


def test_the_emulated_lanes_notice_a_race():
    lanes, values = EmulatedLanes(), torch.ones(3)

    def work():
        with lanes.beside(0):
            doubled = values * 2
        doubled + 1

    with pytest.raises(AssertionError, match="made beside"), Watched(lanes):
        work()


def test_the_emulated_lanes_notice_a_race_between_two_lanes():
    lanes, values = EmulatedLanes(), torch.ones(3)
    with Watched(lanes):
        with lanes.beside(0):
            made = values * 2
        with lanes.beside(0):
            made.add_(1)
        with lanes.beside(1), pytest.raises(AssertionError, match="reads what is made beside"):
            made.neg()
        with lanes.beside(1), pytest.raises(AssertionError, match="writes what is read beside"):
            values.add_(1)
        lanes.join()
        made.add_(values)


def test_the_emulated_lanes_notice_memory_freed_too_early():
    lanes, values = EmulatedLanes(), torch.ones(3)

    def work():
        passing = values + 1
        with lanes.beside(0):
            doubled = passing * 2
        del passing
        lanes.join()
        return doubled

    with pytest.raises(AssertionError, match="freed"), Watched(lanes):
        work()


@pytest.mark.parametrize("make", [Wide, Tied, Sequences, shared, Net])
def test_memory_read_in_a_lane_lives_until_the_join(make):
    model, lanes = make(), EmulatedLanes()
    forks = Forks(lanes, model.parameters(), torch.ones(()), losses_of(model))
    for _ in range(3):
        with Watched(lanes):
            differentiate(forks)
    assert lanes.joins == 3


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("flat", [1 << 20, 1])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_clipping_in_the_optimizers_kernel_matches_torch(optimizer, flat, scale, constants):
    constants(Clipping, FLAT=flat)
    found = []
    for by_kernel in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
        made = optimizer(model.parameters(), lr=0.1, fused=True)
        for _ in range(3):
            made.zero_grad()
            (model(numbers()[0]).square().mean() * scale).backward()
            if by_kernel:
                Clipping(0.5, torch.device("cpu")).step(made, list(model.parameters()))
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                made.step()
        found.append([parameter.detach() for parameter in model.parameters()])
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(*found, strict=True))


def test_a_mode_survives_a_checkpoint():
    mode = choice.Mode(True, False, forked=True, autotuned=True)
    graph, compiled, way, *others = as_list(mode)
    assert choice.Mode(graph, compiled, choice.Way(*way), *others) == mode


def test_all_trainings_on_a_device_share_its_lanes(monkeypatch, answering):
    """cuBLAS keeps 32 MB for every stream that it was used on."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: object())
    answering(torch.cuda, graph_pool_handle=(0, 0))
    monkeypatch.setattr(recorder, "_lanes", {})
    first, again, other = (recorder.CudaRecorder(torch.device("cuda", index)).lanes() for index in (0, 0, 1))
    assert first is again
    assert first is not other
