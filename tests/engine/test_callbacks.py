"""Callbacks that look at a training, stop it, save it and change it."""

from __future__ import annotations

import pytest
import torch

from hotlap.engine import Callback, Checkpoints
from hotlap.engine.errors import BadRecipe, NonFiniteLoss
from tests.engine.training import fitted, outcome, same


class Watch(Callback):
    def __init__(self):
        self.calls = []

    def begin(self, training):
        self.calls.append(("begin", training.epoch, training.step))

    def step(self, training, record):
        self.calls.append(("step", record.epoch, record.step))

    def epoch(self, training, record):
        self.calls.append(("epoch", record.epoch, training.step))

    def end(self, training):
        self.calls.append(("end", training.epoch, training.step))


def test_a_callback_sees_the_training_and_its_records():
    watch = Watch()
    fitted(epochs=2, log_every=5, callbacks=[watch])
    steps = [("step", 1, 5), ("epoch", 1, 5), ("step", 2, 10), ("epoch", 2, 10)]
    assert watch.calls == [("begin", 1, 0), *steps, ("end", 3, 10)]


class StopAt(Callback):
    def __init__(self, step):
        self.at = step

    def step(self, training, record):
        training.stops = training.step >= self.at


def test_a_callback_stops_after_the_epoch(tmp_path):
    kept, said = Checkpoints(tmp_path), []
    _, history = fitted(epochs=4, log_every=1, callbacks=[StopAt(7)], checkpoints=kept)
    assert len(history.epochs) == 2
    fitted(epochs=4, callbacks=[StopAt(7)], checkpoints=kept, resume=True, say=said.append)
    assert "nothing to train: callback StopAt stopped it; leave that callback out to continue" in said


class Save(Callback):
    def step(self, training, record):
        if training.step == 8:
            training.save("eighth.pt")

    def epoch(self, training, record):
        training.save("whole.pt")


def test_a_run_continues_from_what_a_callback_saved(tmp_path):
    whole = outcome(*fitted(log_every=1))
    same(outcome(*fitted(log_every=1, callbacks=[Save()], checkpoints=Checkpoints(tmp_path))), whole)
    same(outcome(*fitted(log_every=1, resume=tmp_path / "eighth.pt")), whole)
    assert torch.load(tmp_path / "whole.pt", weights_only=True)["place"]["epoch"] == 3


class Halve(Callback):
    def __init__(self):
        self.seen = []

    def step(self, training, record):
        self.seen.append(training.optimizer.param_groups[0]["lr"])
        if training.step == 3:
            training.scale_learning_rates(0.5)


def test_a_callback_scales_learning_rates_and_a_resumed_run_keeps_the_scale(tmp_path):
    halve, kept = Halve(), Checkpoints(tmp_path)
    whole = outcome(*fitted(epochs=2, log_every=1, callbacks=[halve]))
    assert halve.seen == [2**-6] * 3 + [2**-7] * 7
    fitted(epochs=1, log_every=1, callbacks=[Halve()], checkpoints=kept)
    same(outcome(*fitted(epochs=2, log_every=1, callbacks=[Halve()], checkpoints=kept, resume=True)), whole)


class Zero(Callback):
    def epoch(self, training, record):
        with torch.no_grad():
            for weight in training.model.parameters():
                weight.zero_()


def test_a_callback_changes_weights():
    made, _ = fitted(epochs=1, callbacks=[Zero()])
    assert not any(weight.any() for weight in made.model.parameters())


class Break(Callback):
    def step(self, training, record):
        training.model.head.weight.data.fill_(torch.nan)
        training.save("broken.pt")


def test_a_broken_state_is_not_saved(tmp_path):
    with pytest.raises(NonFiniteLoss, match="a weight is not finite after step 1"):
        fitted(log_every=1, callbacks=[Break()], checkpoints=Checkpoints(tmp_path))
    assert not list(tmp_path.glob("*.pt"))


class SaveAs(Callback):
    def __init__(self, name):
        self.name = name

    def epoch(self, training, record):
        training.save(self.name)


class Backwards(Callback):
    def epoch(self, training, record):
        training.scale_learning_rates(-1)


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (SaveAs, "a callback is the class SaveAs; give a function of a record, or an object of a subclass of Callback"),
        (3, "a callback is a int; give a function"),
        (SaveAs("last.pt"), "a callback saves 'last.pt'; use a file name of its own that ends in .pt"),
        (SaveAs("../up.pt"), "use a file name of its own"),
        (Backwards(), "scales the learning rates by -1"),
    ],
)
def test_what_a_callback_cannot_do_is_refused(tmp_path, callback, words):
    with pytest.raises(BadRecipe, match=words):
        fitted(epochs=1, callbacks=[callback], checkpoints=Checkpoints(tmp_path))


def test_saving_needs_a_folder():
    with pytest.raises(BadRecipe, match="needs a recipe with checkpoints="):
        fitted(epochs=1, callbacks=[SaveAs("own.pt")])
