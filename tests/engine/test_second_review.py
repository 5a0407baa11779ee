"""What a second review of the trainer found: each would train something else than was asked for, or say so wrongly."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hotlap.engine import RMSE, Recipe, Trainer
from hotlap.engine.checkpoints import LAST
from hotlap.engine.data import CarriedWindows, Tensors
from hotlap.engine.data.errors import DataMismatch
from hotlap.engine.errors import BadRecipe, NoDevice, NonFiniteLoss
from hotlap.engine.order import epoch_order
from hotlap.engine.recipe import Checkpoints, Phase
from hotlap.engine.recurrent import Recurrent
from tests.engine.training import Rows, Stream

MSE = nn.functional.mse_loss
GENERATOR = torch.Generator().manual_seed(1)
INPUTS, TARGETS = torch.randn(1024, 5, generator=GENERATOR), torch.randn(1024, 2, generator=GENERATOR)
DATA = Tensors(INPUTS, TARGETS)
FEW = Tensors(INPUTS[:64], TARGETS[:64])
FIXED = {"threads": 1, "onednn": "on"}


def quiet(line):
    pass


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))


def trainer(model, optimizer, loss=MSE, say=quiet, **more):
    how = {name: more.pop(name) for name in ("metrics", "train_metrics", "inputs", "step", "evaluate") if name in more}
    return Trainer(model, loss, optimizer, Recipe(**{"batch_size": 16, **more}), device="cpu", say=say, **how)


def sgd(model, **more):
    return torch.optim.SGD(model.parameters(), lr=0.1, **more)


def by_hand(model, optimizer, epochs, frozen_epochs=0):
    for epoch in range(epochs):
        model[0].requires_grad_(epoch >= frozen_epochs)
        for rows in epoch_order(64, 0, epoch, torch.device("cpu")).split(16):
            optimizer.zero_grad()
            MSE(model(INPUTS[rows]), TARGETS[rows]).backward()
            optimizer.step()


@pytest.mark.parametrize(
    "more", [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "dampening": 0.5}]
)
def test_sgd_with_momentum_trains_what_a_later_phase_unfreezes(more):
    plain = network()
    by_hand(plain, sgd(plain, **more), 3, frozen_epochs=1)
    model = network()
    trainer(model, sgd(model, **more), phases=(Phase(1, frozen=("0.",)), Phase(2))).fit(FEW)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_sgd_with_momentum_trains_a_head_that_is_used_late():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.early, self.late = nn.Linear(5, 2), nn.Linear(5, 2)

        def forward(self, inputs, used):
            return self.early(inputs) + (self.late(inputs) if float(used[0]) > 0 else 0)

    model = Heads()
    before = model.late.weight.detach().clone()
    used = torch.cat([torch.zeros(32), torch.ones(32)])
    trainer(model, sgd(model, momentum=0.9), shuffle=False, inputs=2).fit(
        Tensors(INPUTS[:64], used, TARGETS[:64]), epochs=1
    )
    assert not torch.equal(model.late.weight, before)


def test_gradients_left_by_another_loop_do_not_move_what_is_frozen():
    model = network()
    optimizer = sgd(model)
    MSE(model(INPUTS), TARGETS).backward()
    before = model[0].weight.detach().clone()
    trainer(model, optimizer, phases=(Phase(2, frozen=("0.",)),)).fit(FEW)
    assert torch.equal(model[0].weight, before)
    MSE(model(INPUTS), TARGETS).backward()
    model[0].requires_grad_(False)
    trainer(model, optimizer).fit(FEW, epochs=1)
    assert torch.equal(model[0].weight, before)


class Weighted(nn.Module):
    """A loss with a weight and a count of its own."""

    def __init__(self):
        super().__init__()
        self.logs = nn.Parameter(torch.zeros(2))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, outputs, targets):
        self.seen += 1
        return ((outputs - targets).square().mean(0) * torch.exp(-self.logs) + self.logs).sum()


def weighted(folder=None, **more):
    torch.manual_seed(0)
    model, loss = nn.Linear(5, 2), Weighted()
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.05)
    kept = Checkpoints(folder) if folder else None
    return loss, trainer(model, optimizer, loss, batch_size=8, checkpoints=kept, **more)


def test_trial_steps_do_not_train_a_loss_with_weights():
    loss, own = weighted()
    own.fit(DATA, epochs=2)
    assert loss.seen.item() == 256


def test_a_loss_with_weights_is_resumed(tmp_path):
    whole, own = weighted(tmp_path / "whole", **FIXED)
    own.fit(DATA, epochs=2)
    weighted(tmp_path / "parts", **FIXED)[1].fit(DATA, epochs=1)
    loss, own = weighted(tmp_path / "parts", **FIXED)
    own.fit(DATA, epochs=2, resume=True)
    assert torch.equal(loss.logs, whole.logs)
    assert torch.equal(loss.seen, whole.seen)


def test_what_belongs_to_neither_model_nor_loss_is_refused():
    with pytest.raises(BadRecipe, match=r"2 of the 2 tensors of the optimizer.* belong neither"):
        trainer(network(), sgd(nn.Linear(5, 2)))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.tensor, self.list, self.dict, self.number = torch.zeros(1), [], {"n": 0}, 0

    def forward(self, inputs):
        if self.training:
            self.tensor += 1
            self.list.append(1)
            self.dict["n"] += 1
            self.number += 1
        return self.layer(inputs)


def test_trial_steps_leave_what_a_forward_counts_in_place():
    model = Counting()
    trainer(model, sgd(model), batch_size=8).fit(DATA, epochs=2)
    assert (model.tensor.item(), len(model.list), model.dict["n"], model.number) == (256, 256, 256, 256)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_carried_state_is_right_where_activations_are_computed_again(kind):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent, self.head = Recurrent(kind, 3, 8, state="carry", lanes=4), nn.Linear(8, 1)

        def forward(self, inputs, first):
            return self.head(self.recurrent(inputs, first))

    series = [torch.randn(200, 3, generator=torch.Generator().manual_seed(number)) for number in range(4)]
    data = CarriedWindows(series, 10, [one.cumsum(0)[:, :1] for one in series], 4)
    found = []
    for again in (False, True):
        torch.manual_seed(0)
        model = Net()
        how = {"batch_size": 4, "shuffle": False, "activation_checkpointing": again, "inputs": 2, **FIXED}
        history = trainer(model, torch.optim.SGD(model.parameters(), lr=0.01), **how).fit(data, epochs=2)
        found.append(([one.loss for one in history.epochs], model.recurrent.carried_h.tolist()))
    assert found[0] == found[1]


def test_a_spectral_norm_is_iterated_once_where_activations_are_computed_again():
    losses = []
    for again in (False, True):
        model = network()
        nn.utils.parametrizations.spectral_norm(model[0])
        history = trainer(model, sgd(model), activation_checkpointing=again, **FIXED).fit(FEW, epochs=3)
        losses.append([one.loss for one in history.epochs])
    assert losses[0] == losses[1]


def test_a_run_resumed_before_its_last_short_step_computes_as_it_did(tmp_path, monkeypatch):
    """Threads and oneDNN are chosen by measurement: also what comes before the next whole step is computed so."""
    from hotlap.engine import processor

    used = []
    monkeypatch.setattr(processor, "use", lambda way: used.append(way))
    model = network()
    how = {"batch_size": 20, "checkpoints": Checkpoints(tmp_path, steps=3), "log_every": 1}
    with pytest.raises(KeyboardInterrupt):
        trainer(model, sgd(model), **how).fit(StopsAfter(3), epochs=2)
    state = torch.load(tmp_path / LAST, weights_only=True)
    state["place"]["mode"] = [False, False, [True, 1, " on one thread"], False]
    torch.save(state, tmp_path / LAST)
    used.clear()
    again = trainer(model, sgd(model), **how)
    with pytest.raises(KeyboardInterrupt):
        again.fit(StopsAfter(1), epochs=2, resume=True)
    assert processor.Way(True, 1, " on one thread") in used
    assert torch.load(tmp_path / LAST, weights_only=True)["place"]["mode"] == state["place"]["mode"]


class StopsAfter(Tensors):
    """64 rows, of which the step after so many others does not come."""

    def __init__(self, steps):
        super().__init__(INPUTS[:64], TARGETS[:64])
        self.left = steps

    def gather(self, rows):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super().gather(rows)


def test_a_metric_may_not_have_the_name_of_the_training_loss():
    model = network()
    for kind in ("metrics", "train_metrics"):
        with pytest.raises(BadRecipe, match='named "loss"'):
            trainer(model, sgd(model), **{kind: {"loss": RMSE()}})


def test_a_score_of_ones_own_is_judged_by_also_where_it_is_named_loss():
    model, rising = network(), iter(range(100))
    own = trainer(model, sgd(model), patience=2, evaluate=lambda model: {"loss": float(next(rising))})
    history = own.fit(FEW, epochs=6)
    assert len(history.epochs) == 3
    assert history.best_epoch == 1


def test_one_metric_object_cannot_count_for_both_splits():
    model, metric = network(), RMSE()
    with pytest.raises(BadRecipe, match="share 'rmse'"):
        trainer(model, sgd(model), metrics={"rmse": metric}, train_metrics={"train_rmse": metric})


def test_a_run_resumed_by_another_measure_has_a_best_of_its_own(tmp_path):
    model, said = network(), []
    how = {"checkpoints": Checkpoints(tmp_path), "patience": 3}
    trainer(model, sgd(model), **how).fit(FEW, FEW, epochs=2)
    rising = iter(range(100))
    own = {"evaluate": lambda model: {"f1": float(next(rising))}, "monitor": "f1", "higher_is_better": True}
    history = trainer(model, sgd(model), say=said.append, **how, **own).fit(FEW, epochs=8, resume=True)
    assert len(history.epochs) == 8
    assert history.best_epoch == 8
    assert any("highest f1 from now on" in line for line in said)


def test_other_settings_of_the_optimizer_are_told_when_it_is_resumed(tmp_path):
    model, said = network(), []
    how = {"checkpoints": Checkpoints(tmp_path)}
    trainer(model, sgd(model), **how).fit(FEW, epochs=1)
    trainer(model, sgd(model, weight_decay=0.1), say=said.append, **how).fit(FEW, epochs=2, resume=True)
    assert "the optimizer has weight_decay=0, as in the checkpoint; 0.1 was given" in said


def test_a_finished_run_says_that_there_is_nothing_to_do(tmp_path):
    model, said = network(), []
    how = {"checkpoints": Checkpoints(tmp_path)}
    trainer(model, sgd(model), **how).fit(FEW, epochs=2)
    history = trainer(model, sgd(model), say=said.append, **how).fit(FEW, epochs=2, resume=True)
    assert len(history.epochs) == 2
    assert "nothing is trained: 2 epochs are trained, and 2 were asked for; more of them go on" in said


def test_an_error_is_not_hidden_by_a_checkpoint_that_could_not_be_written(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hotlap.engine.checkpoints.write", full)
    model, said = network(), []
    broken = Tensors(torch.cat([INPUTS[:63], torch.full((1, 5), torch.nan)]), TARGETS[:64])
    how = {"checkpoints": Checkpoints(tmp_path, steps=1), "shuffle": False, "log_every": 1}
    with pytest.raises(NonFiniteLoss):
        trainer(model, sgd(model), say=said.append, **how).fit(broken, epochs=1)
    assert any("No space left on device" in line for line in said)


def test_an_interrupt_does_not_say_that_a_state_was_kept_that_was_not(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hotlap.engine.checkpoints.write", full)
    model, said = network(), []

    def press(record):
        import os
        import signal

        os.kill(os.getpid(), signal.SIGINT)

    own = Trainer(
        model, MSE, sgd(model), Recipe(batch_size=16, log_every=1, checkpoints=Checkpoints(tmp_path)),
        callbacks=[press], device="cpu", say=said.append,
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        own.fit(FEW, epochs=2)
    assert not any("the state is in" in line for line in said)
    assert any(line.startswith("interrupted: no checkpoint could be written") for line in said)


def test_checkpoints_cost_the_same_after_many_epochs(tmp_path):
    from hotlap.engine.checkpoints import set_aside
    from hotlap.engine.records import EpochRecord
    from hotlap.engine.saving import Position

    record = EpochRecord(
        epoch=1, loss=1.0, scores={}, seconds=1.0, evaluation_seconds=0.0, prepare_seconds=0.0, rows=1, steps=1,
        learning_rate=0.1, losses={}, train_scores={},
    )  # fmt: skip
    place = Position(epochs=[copy.copy(record) for _ in range(100)])
    first = place.records()
    place.epochs.append(record)
    second = place.records()
    assert len(second) == 101
    assert all(one is other for one, other in zip(first, second, strict=False))
    aside, _ = set_aside({"epochs": second})
    assert type(aside["epochs"]) is list
    assert aside["epochs"][0] is first[0]


@pytest.mark.parametrize("given", [torch.zeros(3, 5), (INPUTS, TARGETS), [1]])
def test_what_is_no_source_is_told(given):
    model = network()
    with pytest.raises(BadRecipe, match=r"give a source of hotlap\.engine\.data"):
        trainer(model, sgd(model)).fit(given, epochs=1)


@pytest.mark.parametrize(("part", "said"), [(1.0, "a float as 'box'"), (torch.zeros(3), "'box' of shape")])
def test_parts_of_a_loss_are_one_number_each(part, said):
    model = network()
    with pytest.raises(BadRecipe, match=said):
        trainer(model, sgd(model), lambda outputs, targets: {"fit": MSE(outputs, targets), "box": part}).fit(
            FEW, epochs=1
        )


def test_a_part_of_a_loss_may_have_a_dimension():
    model = network()
    loss = lambda outputs, targets: {"fit": MSE(outputs, targets), "box": outputs.mean().reshape(1)}  # noqa: E731
    assert "box" in trainer(model, sgd(model), loss).fit(FEW, epochs=1).epochs[0].losses


def test_a_device_that_is_none_is_told():
    model = network()
    with pytest.raises(NoDevice, match="device='gpu' is none"):
        Trainer(model, MSE, sgd(model), Recipe(batch_size=4), device="gpu")


def test_a_trainer_with_a_step_of_its_own_evaluates_by_it():
    model = network()

    def step(model, batch):
        return MSE(model(batch[0]), batch[1])

    found = trainer(model, sgd(model), None, step=step).evaluate(FEW)
    assert found["valid_loss"] == pytest.approx(float(MSE(model(INPUTS[:64]), TARGETS[:64]).detach()))
    with pytest.raises(BadRecipe, match="nothing to evaluate by"):
        trainer(model, sgd(model), evaluate=lambda model: {"own": 1.0}).evaluate(FEW)


class Keeps(Rows):
    """Leaves rows of a batch out, as a source of one's own may."""

    def gather(self, index):
        return tuple(one[:5] for one in super().gather(index))


def first_five(number, batch):
    return tuple(one[:5] for one in batch)


@pytest.mark.parametrize("source", [Keeps(INPUTS, TARGETS), Stream(INPUTS, TARGETS, altered=first_five)])
def test_batches_with_other_rows_than_asked_for_are_refused(source):
    model = network()
    with pytest.raises(DataMismatch, match="rows were asked for"):
        trainer(model, sgd(model)).fit(source, epochs=1)
    with pytest.raises(DataMismatch, match="rows were asked for"):
        trainer(model, sgd(model)).fit(FEW, source, epochs=1)


class EndsEarly(Stream):
    def batches(self, *how):
        yield next(super().batches(*how))


def test_a_validation_split_that_ends_early_is_refused():
    model = network()
    with pytest.raises(DataMismatch, match="the data ended early: 1 batches"):
        trainer(model, sgd(model), evaluation_batch=16).fit(FEW, EndsEarly(INPUTS, TARGETS), epochs=1)
