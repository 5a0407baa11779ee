"""The engine trains what a loop written by hand would train."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from hotlap.engine import Cosine, FromTorch, Linear, Mean, Phase, Recipe, Trainer, steps
from hotlap.engine.errors import (
    BadRecipe,
    BatchTooLarge,
    CaptureFailed,
    DataElsewhere,
    EmptySplit,
    NoDevice,
    NonFiniteLoss,
)
from hotlap.engine.loss_readout import Looks
from hotlap.engine.order import epoch_order
from tests.engine.training import RATE, Net, Rows, Stream, captured, fitted, numbers, outcome, same, trainer


def by_hand(epochs=3, batch_size=16, clip=None, drop_last=False):
    torch.manual_seed(3)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    inputs, targets = numbers()
    losses = []
    torch.manual_seed(0)
    for epoch in range(epochs):
        order = epoch_order(len(inputs), 0, epoch, torch.device("cpu"))
        total = rows = 0
        for index in order.split(batch_size):
            if len(index) < batch_size and drop_last:
                continue
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs[index]), targets[index])
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            total, rows = total + loss.item() * len(index), rows + len(index)
        losses.append(total / rows)
    return model, losses


@pytest.mark.parametrize("options", [{}, {"clip": 0.5}, {"drop_last": True}])
@pytest.mark.parametrize("source", [Rows, Stream])
def test_trains_bit_for_bit_like_a_plain_loop(options, source):
    model, losses = by_hand(**options)
    made, history = fitted(train=source(*numbers()), **options)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), made.model.parameters(), strict=True))
    assert [record.loss for record in history.epochs] == pytest.approx(losses, rel=1e-6)
    assert history.last.rows == (64 if options.get("drop_last") else 70)


@pytest.mark.parametrize("source", [Rows, Stream])
def test_accumulated_batches_equal_one_large_batch_even_the_short_last_one(source):
    """70 rows make one window of 4 × 16 and one of a single batch of 6, or one of 3 × 16 and one of 16 + 6."""
    plain = {"model": lambda: nn.Linear(6, 1), "optimizer": torch.optim.SGD}
    for accumulate in (4, 3):
        made, history = fitted(train=source(*numbers()), accumulate=accumulate, **plain)
        large, other = fitted(batch_size=16 * accumulate, **plain)
        for parameter, expected in zip(made.model.parameters(), large.model.parameters(), strict=True):
            torch.testing.assert_close(parameter, expected)
        assert history.last.steps == other.last.steps == 6
        assert history.last.loss == pytest.approx(other.last.loss, rel=1e-5)


def test_several_losses_are_weighted_and_reported_by_name():
    def losses(outputs, targets):
        error = outputs - targets
        return {"square": error.square().mean(), "absolute": error.abs().mean()}

    made, history = fitted(loss=losses, loss_weights={"absolute": 0.5})
    alone, other = fitted(loss=lambda o, t: (o - t).square().mean() + 0.5 * (o - t).abs().mean())
    same((outcome(made, history)[0], []), (outcome(alone, other)[0], []))
    last = history.last
    assert last.loss == pytest.approx(last.losses["square"] + 0.5 * last.losses["absolute"], rel=1e-5)
    with pytest.raises(BadRecipe, match="loss_weights names"):
        fitted(loss=losses, loss_weights={"other": 1.0})


def test_a_custom_step_replaces_model_and_loss():
    def step(model, batch):
        inputs, targets = batch
        return (model(inputs) - targets).square().mean()

    same(outcome(*fitted(loss=None, step=step)), outcome(*fitted(loss=lambda o, t: (o - t).square().mean())))


def test_trains_a_model_with_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 1)

        def forward(self, first, second):
            return self.layer(first + second)

    inputs, targets = numbers()
    _, history = fitted(train=Rows(inputs, inputs, targets), valid=Rows(inputs, inputs, targets), inputs=2, model=Two)
    assert history.epochs[-1].loss < history.epochs[0].loss


def test_frozen_parameters_stay_and_may_train_again_in_the_next_phase():
    seen = []

    def look(record):
        seen.append(made.model.body[0].weight.detach().clone())

    made = trainer(callbacks=[look], phases=(Phase(2, frozen=("body",), learning_rate=0.5), Phase(1)))
    before = made.model.body[0].weight.detach().clone()
    history = made.fit(Rows(*numbers()))
    assert torch.equal(seen[0], before)
    assert torch.equal(seen[1], before)
    assert not torch.equal(seen[2], before)
    assert [record.learning_rate for record in history.epochs] == [0.5, 0.5, RATE]
    assert all(parameter.requires_grad for parameter in made.model.parameters())


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_running_statistics_of_frozen_modules_move_unless_they_are_frozen_too(keeps, checkpointing):
    seen = []

    def look(record):
        seen.append((norm.running_mean.clone(), norm.training, int(norm.num_batches_tracked)))

    phases = (Phase(1, frozen=("body.",), frozen_statistics=keeps), Phase(1))
    made = trainer(callbacks=[look], phases=phases, activation_checkpointing=checkpointing)
    norm = made.model.body[1]
    before = norm.running_mean.clone()
    made.fit(Rows(*numbers()), Rows(*numbers(seed=1)))
    (frozen, trains, counted), (freed, trains_again, _) = seen
    assert torch.equal(frozen, before) == keeps
    assert (trains, counted) == (not keeps, 0 if keeps else 5)
    assert trains_again
    assert not torch.equal(freed, before)
    assert norm.training


@pytest.mark.parametrize("graph", [False, True])
def test_frozen_statistics_equal_a_module_in_evaluation_mode(graph, monkeypatch):
    """Dropout beside the norm stays active."""

    def set_by_hand():
        model = Net()
        model.body[1].eval()
        model.body.requires_grad_(False)
        return model

    run = functools.partial(captured, monkeypatch) if graph else fitted
    made, history = run(phases=(Phase(3, frozen=("body.",), frozen_statistics=True),))
    expected = run(model=set_by_hand)
    assert made.model.body[1].training
    assert not expected[0].model.body[1].training
    same(outcome(made, history), outcome(*expected))


def test_a_norm_in_evaluation_mode_stays_in_it_in_every_phase():
    made = trainer(phases=(Phase(1, frozen=("body.",), frozen_statistics=True), Phase(1)))
    made.model.body[1].eval()
    made.fit(Rows(*numbers()))
    assert torch.equal(made.model.body[1].running_mean, torch.zeros(12))
    assert not made.model.body[1].training


def test_a_fresh_optimizer_forgets_its_moments():
    continued, _ = fitted(epochs=None, phases=(Phase(1), Phase(1)))
    fresh, _ = fitted(epochs=None, phases=(Phase(1), Phase(1, fresh_optimizer=True)))
    assert {int(state["step"]) for state in continued.optimizer.state.values()} == {10}
    assert {int(state["step"]) for state in fresh.optimizer.state.values()} == {5}


def rates(**options):
    made = trainer(rate=1.0, log_every=1, **options)
    found, step = [], made.optimizer.step
    made.optimizer.step = lambda: (found.append(float(made.optimizer.param_groups[0]["lr"])), step())[1]
    made.fit(Rows(*numbers()), epochs=3)
    return found


def test_learning_rates_follow_the_schedule():
    assert rates(schedule=Linear(end=0.5, by="epoch")) == [1.0] * 5 + [0.75] * 5 + [0.5] * 5
    cosine = rates(schedule=Cosine(end=0.1), warmup=4)
    assert cosine[:2] == pytest.approx([0.25, 0.49], abs=0.01)
    assert cosine[-1] == pytest.approx(0.1)
    by_torch = FromTorch(make=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
    assert rates(schedule=by_torch) == [1.0] * 5 + [0.5] * 5 + [0.25] * 5
    by_step = FromTorch(make=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 4), by="step")
    assert rates(schedule=by_step) == pytest.approx([1.0] * 4 + [0.1] * 4 + [0.01] * 4 + [0.001] * 3)


def test_a_plateau_lowers_the_rate():
    schedule = FromTorch(
        make=lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    )
    _, history = fitted(evaluate=lambda model: {"flat": 1.0}, metrics={}, schedule=schedule, epochs=3)
    assert [record.learning_rate for record in history.epochs] == [RATE, RATE, RATE / 2]


def test_stops_early_and_knows_the_best():
    scores = iter([3.0, 1.0, 2.0, 1.5, 0.0])
    own = {"evaluate": lambda model: {"score": next(scores)}, "higher_is_better": False}
    _, history = fitted(epochs=5, metrics={}, patience=2, **own)
    assert [record.epoch for record in history.epochs] == [1, 2, 3, 4]
    assert history.stopped_early
    assert history.best_epoch == 2
    with pytest.raises(BadRecipe, match="monitor='nothing'"):
        fitted(monitor="nothing")


def test_evaluates_the_averaged_weights():
    made, history = fitted(ema=0.9, model=lambda: nn.Linear(6, 1))
    averaged = nn.Linear(6, 1)
    weights = []
    torch.manual_seed(3)
    plain = nn.Linear(6, 1)

    def moved(averaged, weight, updates):
        share = 0.1 / (1 - 0.9 ** (updates + 1))  # of the newest: of few weights each has the same, of many 1 - decay
        return averaged + (weight - averaged) * share

    average = torch.optim.swa_utils.AveragedModel(plain, avg_fn=moved)  # begins with the weights after the first step
    again = trainer(model=plain, callbacks=[lambda record: weights.append(1)])
    step = again.optimizer.step
    again.optimizer.step = lambda: (step(), average.update_parameters(plain))[0]
    again.fit(Rows(*numbers()), epochs=3)
    averaged.load_state_dict(average.module.state_dict())
    inputs, targets = numbers(seed=1)
    expected = nn.functional.mse_loss(averaged(inputs), targets).sqrt().item()
    assert history.last.scores["rmse"] == pytest.approx(expected, rel=1e-5)
    assert torch.equal(made.model.weight, plain.weight)


def test_train_metrics_are_computed_during_training():
    _, history = fitted(train_metrics={"error": Mean(lambda o, t: (o - t).square().mean())})
    assert history.last.train_scores["error"] == pytest.approx(history.last.loss, rel=1e-5)


def test_recomputed_blocks_train_the_same_with_the_same_random_numbers():
    same(outcome(*fitted(activation_checkpointing=True)), outcome(*fitted()))
    same(outcome(*fitted(activation_checkpointing=("body",))), outcome(*fitted()))
    made, _ = fitted(activation_checkpointing=True)
    assert "forward" not in vars(made.model.body)
    with pytest.raises(BadRecipe, match="'tail', which the model does not have"):
        fitted(activation_checkpointing=("tail",))


def test_compiles_the_step_when_requested(monkeypatch):
    """The compiler is replaced by one that returns the function unchanged."""
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: asked.append(options) or function)
    said = []
    same(outcome(*fitted(compile="on", say=said.append)), outcome(*fitted()))
    assert asked == [{"fullgraph": True, "dynamic": False}]
    assert said[0].startswith("step: compiled")


def test_losses_are_computed_in_float32_under_half_precision():
    kinds = []

    def loss(outputs, targets):
        kinds.append(outputs.dtype)
        return nn.functional.mse_loss(outputs, targets)

    _, history = fitted(precision="bf16", loss=loss)
    assert set(kinds) == {torch.float32}
    assert history.epochs[-1].loss < history.epochs[0].loss


def test_channels_last_converts_weights_and_inputs():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(32, 1))
    layouts = []
    model[0].register_forward_pre_hook(
        lambda module, args: layouts.append(args[0].is_contiguous(memory_format=torch.channels_last))
    )
    images, targets = torch.randn(32, 3, 4, 4), torch.randn(32, 1)
    fitted(model=model, channels_last=True, train=Rows(images, targets), valid=Rows(images, targets))
    assert all(layouts)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


# What is rejected


@pytest.mark.parametrize(
    ("error", "options", "words"),
    [
        (BatchTooLarge, {"batch_size": 71}, "larger than the 70 rows"),
        (EmptySplit, {"train": Rows(torch.zeros(0, 6), torch.zeros(0, 1))}, "training split is empty"),
        (EmptySplit, {"valid": Rows(torch.zeros(0, 6), torch.zeros(0, 1))}, "validation split is empty"),
        (DataElsewhere, {"train": Rows(*numbers(device="meta"))}, "is on meta, but the model trains on cpu"),
        (CaptureFailed, {"graph": "on"}, "no CUDA device"),
        (BadRecipe, {"epochs": None}, "say how long"),
        (BadRecipe, {"phases": (Phase(2),)}, "the phases of the recipe add up to 2"),
        (BadRecipe, {"phases": (Phase(3, frozen=("nowhere",)),)}, "freezes 'nowhere'"),
        (BadRecipe, {"phases": (Phase(3, frozen=("body", "head")),)}, "left to train"),
        (BadRecipe, {"loss": lambda outputs, targets: 1.0}, "return a tensor or a dict"),
    ],
)
def test_rejects_bad_input_in_one_clear_line(error, options, words):
    with pytest.raises(error, match=words) as caught:
        fitted(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"batch_size": 0}, {"accumulate": 0}, {"precision": "fp8"}, {"graph": "maybe"}, {"clip": 0.0}, {"ema": 1.0},
        {"warmup": -1}, {"patience": 0}, {"log_every": 0}, {"evaluation_batch": 0},
    ],
)  # fmt: skip
def test_rejects_recipe_values_out_of_range(values):
    with pytest.raises(BadRecipe):
        Recipe(**{"batch_size": 8, **values})


def test_rejects_a_missing_gpu_and_unsupported_devices(answering):
    answering(torch.cuda, is_available=False)
    with pytest.raises(NoDevice, match='use device="cpu" or "auto"'):
        trainer(device="cuda")
    with pytest.raises(NoDevice, match="trains only on a CPU or a GPU"):
        trainer(device="meta")
    with pytest.raises(BadRecipe, match="either loss or step"):
        Trainer(nn.Linear(1, 1), None, None, Recipe(batch_size=1))


@pytest.mark.parametrize("log_every", [200, 2])
def test_a_nan_loss_stops_the_training_and_names_the_step(log_every):
    inputs, targets = numbers()
    order = epoch_order(70, 0, 1, torch.device("cpu"))
    targets = targets.clone()
    broken = Rows(inputs, targets)

    def poison(record):
        if getattr(record, "scores", None) is not None:
            targets[order[20]] = float("nan")  # in the second batch of the second epoch

    with pytest.raises(NonFiniteLoss, match=r"loss is nan at step 7 \(epoch 2\); no checkpoint was saved") as caught:
        fitted(train=broken, callbacks=[poison], log_every=log_every)
    assert caught.value.step == 7
    _, history = fitted(train=broken, nan_guard=False)
    assert history.last.loss != history.last.loss


def test_a_data_error_propagates_and_leaves_nothing_behind():
    def fail(number, batch):
        if number == 2:
            raise OSError("row 40 cannot be read")
        return batch

    made = trainer()
    with pytest.raises(OSError, match="row 40"):
        made.fit(Stream(*numbers(), altered=fail), epochs=1)
    made.fit(Rows(*numbers()), epochs=1)


def test_trains_with_sparse_gradients():
    model = nn.Sequential(nn.Embedding(10, 1, sparse=True), nn.Flatten(1))
    rows = torch.arange(70)[:, None] % 10
    data = Rows(rows, rows.float())
    options = {"model": model, "optimizer": torch.optim.SGD, "rate": 0.5, "train": data, "valid": data}
    _, history = fitted(epochs=5, **options)
    assert history.last.loss < 0.5 * history.epochs[0].loss


def test_rejects_a_loss_whose_names_change():
    names = iter(["a"] * 3 + ["b"] * 99)
    with pytest.raises(BadRecipe, match="the loss returned loss, b, but loss, a before"):
        fitted(loss=lambda outputs, targets: {next(names): (outputs - targets).square().mean()})


def test_the_next_order_is_drawn_before_waiting_for_the_losses(monkeypatch):
    seen, draw, read = [], steps.order_of, Looks.all
    monkeypatch.setattr(
        steps, "order_of", lambda source, seed, epoch, *rest: seen.append(epoch) or draw(source, seed, epoch, *rest)
    )
    monkeypatch.setattr(Looks, "all", lambda self, done: seen.append("read") or read(self, done))
    fitted(epochs=3)
    assert seen == [0, 1, "read", 2, "read", "read"]
