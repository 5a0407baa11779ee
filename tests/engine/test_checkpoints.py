"""A checkpoint is complete or absent, and a resumed training is bit for bit the uninterrupted one."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

import hotlap.engine.trainer
from hotlap.engine import Checkpoints, Cosine, FromTorch, Phase, checkpoints, run_state
from hotlap.engine.errors import (
    CheckpointDamaged,
    CheckpointNotWritten,
    CheckpointOfAnotherModel,
    CheckpointsInTheWay,
    NonFiniteLoss,
    NothingToResume,
)
from tests.engine.tape import EmulatedRecorder
from tests.engine.training import Cut, Rows, Stream, cut_at, fitted, numbers, outcome, same, trainer

WITH_STATE = {
    "plain": {},
    "schedule": {"schedule": Cosine(), "warmup": 3},
    "torch-scheduler": {
        "schedule": FromTorch(make=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5), by="step")
    },
    "ema": {"ema": 0.9},
    "steps-per-epoch": {"steps_per_epoch": 7},
    "fp16": {"precision": "fp16"},
    "accumulate": {"accumulate": 2},
    "phases": {"phases": (Phase(1, frozen=("body",)), Phase(2))},
    "losses": {"loss": lambda o, t: {"a": (o - t).square().mean(), "b": (o - t).abs().mean()}},
}


def interrupted(folder, step, how, train=None, **options):
    saved = Checkpoints(folder, steps=1, replace=True)
    made = trainer(callbacks=[cut_at(step, how)], log_every=1, checkpoints=saved, **options)
    expected = {None: Cut, signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit}[how]
    epochs = None if "phases" in options else 3
    with pytest.raises(expected):
        made.fit(train or Rows(*numbers()), Rows(*numbers(seed=1)), epochs)


@pytest.mark.parametrize("options", WITH_STATE.values(), ids=WITH_STATE.keys())
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_resuming_mid_epoch_is_bit_exact(tmp_path, options, graph, monkeypatch):
    if graph:
        monkeypatch.setattr(hotlap.engine.trainer, "recorder_for", lambda device: EmulatedRecorder())
        options = {**options, "graph": "on"}
    steps = 5 if "accumulate" in options else 8
    interrupted(tmp_path, steps, None, **options)
    torch.manual_seed(77)  # another process has other random streams
    resumed = fitted(resume=True, checkpoints=Checkpoints(tmp_path), **options)
    same(outcome(*resumed), outcome(*fitted(**options)))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_everything_up_to_the_last_step(tmp_path, how):
    before = signal.getsignal(how)
    interrupted(tmp_path, 7, how)
    state = torch.load(tmp_path / "last.pt", weights_only=True)
    assert (state["place"]["epoch"], state["place"]["window"]) == (1, 3)  # step 8 was under way
    assert signal.getsignal(how) is before
    same(outcome(*fitted(resume=True, checkpoints=Checkpoints(tmp_path))), outcome(*fitted()))


def test_a_signal_between_epochs_loses_nothing(tmp_path):
    def callback(record):
        if getattr(record, "scores", None) is not None:
            os.kill(os.getpid(), signal.SIGINT)

    made = trainer(callbacks=[callback], checkpoints=Checkpoints(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        made.fit(Rows(*numbers()), Rows(*numbers(seed=1)), 3)
    resumed = fitted(resume=True, checkpoints=Checkpoints(tmp_path))
    assert [record.epoch for record in resumed[1].epochs] == [1, 2, 3]
    same(outcome(*resumed), outcome(*fitted()))


def test_resuming_streams_only_the_rest_of_the_epoch(tmp_path):
    interrupted(tmp_path, 8, None, train=Stream(*numbers()))
    requested = []

    class Watched(Stream):
        def batches(self, order, *others):
            requested.append(len(order))
            return super().batches(order, *others)

    resumed = fitted(resume=True, train=Watched(*numbers()), checkpoints=Checkpoints(tmp_path))
    assert requested == [70 - 2 * 16, 70]
    same(outcome(*resumed), outcome(*fitted(train=Stream(*numbers()))))


def test_a_longer_run_continues_where_a_shorter_one_ended(tmp_path):
    fitted(epochs=2, checkpoints=Checkpoints(tmp_path))
    resumed = fitted(epochs=3, resume=True, checkpoints=Checkpoints(tmp_path))
    same(outcome(*resumed), outcome(*fitted(epochs=3)))
    again = fitted(epochs=3, resume=tmp_path / "last.pt")
    assert [record.epoch for record in again[1].epochs] == [1, 2, 3]


def test_saves_the_best_the_last_and_every_second_epoch(tmp_path):
    scores = iter([1.0, 3.0, 2.0, 2.5])
    options = {"evaluate": lambda model: {"score": next(scores)}, "metrics": {}, "higher_is_better": True}
    fitted(epochs=4, checkpoints=Checkpoints(tmp_path, every=2), **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "epoch-0002.pt", "epoch-0004.pt", "last.pt"]
    epochs = {path.stem: checkpoints.load(path)["place"]["epoch"] for path in tmp_path.iterdir()}
    assert epochs == {"best": 2, "epoch-0002": 2, "epoch-0004": 4, "last": 4}


def test_several_best_epochs_are_kept_over_a_resume(tmp_path):
    scores = iter([1.0, 3.0, 2.0, math.nan, 4.0, 2.0])
    kept = Checkpoints(tmp_path, best=2)
    options = {"evaluate": lambda model: {"score": next(scores)}, "metrics": {}, "higher_is_better": True}
    fitted(epochs=2, checkpoints=kept, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-0001.pt", "best-0002.pt", "best.pt", "last.pt"]
    fitted(epochs=6, checkpoints=kept, resume=True, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-0002.pt", "best-0005.pt", "best.pt", "last.pt"]
    epochs = {path.stem: checkpoints.load(path)["place"]["epoch"] for path in tmp_path.iterdir()}
    assert epochs == {"best": 5, "best-0002": 2, "best-0005": 5, "last": 6}


def test_rejects_damaged_files_and_names_the_last_good_one(tmp_path):
    fitted(epochs=2, checkpoints=Checkpoints(tmp_path, best=False, every=1))
    last = tmp_path / "last.pt"
    whole = last.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for damaged in (whole[:middle], flipped, b"", b"not a checkpoint"):
        last.write_bytes(damaged)
        with pytest.raises(CheckpointDamaged, match=r"last\.pt cannot be read.*last good one is .*epoch-0002\.pt"):
            fitted(resume=True, checkpoints=Checkpoints(tmp_path))
    torch.save({"weights": torch.zeros(1)}, last)
    with pytest.raises(CheckpointDamaged, match="not a checkpoint of the engine"):
        fitted(resume=True, checkpoints=Checkpoints(tmp_path))


def test_rejects_a_checkpoint_of_another_training(tmp_path):
    fitted(epochs=1, checkpoints=Checkpoints(tmp_path))
    before = trainer(model=lambda: nn.Linear(6, 1), checkpoints=Checkpoints(tmp_path))
    weights = before.model.weight.detach().clone()
    with pytest.raises(CheckpointOfAnotherModel, match=r"is for another model: .* is missing there"):
        before.fit(Rows(*numbers()), epochs=1, resume=True)
    assert torch.equal(before.model.weight, weights)
    with pytest.raises(CheckpointOfAnotherModel, match="trained with optimizer Adam, but this run has SGD"):
        fitted(resume=True, optimizer=torch.optim.SGD, checkpoints=Checkpoints(tmp_path))
    interrupted(tmp_path, 8, None)
    with pytest.raises(CheckpointOfAnotherModel, match="batch_size 16, but this run has 8"):
        fitted(resume=True, batch_size=8, checkpoints=Checkpoints(tmp_path))


def test_resuming_without_a_checkpoint_is_an_error(tmp_path):
    with pytest.raises(NothingToResume, match="start once without resume"):
        fitted(resume=True, checkpoints=Checkpoints(tmp_path))
    with pytest.raises(NothingToResume, match="needs a recipe with checkpoints"):
        fitted(resume=True)


def test_a_non_finite_loss_names_the_last_good_checkpoint(tmp_path):
    inputs, targets = numbers()

    def poison(record):
        if getattr(record, "scores", None) is not None:
            targets.fill_(float("inf"))

    with pytest.raises(
        NonFiniteLoss, match=r"loss is inf at step 6 \(epoch 2\); last good checkpoint: .*last\.pt"
    ) as e:
        fitted(train=Rows(inputs, targets), callbacks=[poison], checkpoints=Checkpoints(tmp_path, steps=2))
    state = checkpoints.load(e.value.checkpoint)
    assert all(weight.isfinite().all() for weight in state["model"].values())
    assert state["place"]["epoch"] == 1


def test_a_failed_write_leaves_the_old_file_and_is_reported_at_the_end(tmp_path, monkeypatch):
    fitted(epochs=1, checkpoints=Checkpoints(tmp_path))
    whole = (tmp_path / "last.pt").read_bytes()

    def full(state, file):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    made = trainer(checkpoints=Checkpoints(tmp_path, replace=True))
    with pytest.raises(CheckpointNotWritten, match="No space left on device"):
        made.fit(Rows(*numbers()), epochs=2)
    assert (tmp_path / "last.pt").read_bytes() == whole
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_training_continues_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """The file holds the state at the moment of the checkpoint, however late the disk is."""
    import threading

    gate, write = threading.Event(), checkpoints.write
    monkeypatch.setattr(checkpoints, "write", lambda *args: (gate.wait(10), write(*args))[1])

    def open_gate(record):
        if getattr(record, "epoch", 0) == 2:
            gate.set()

    states = []
    made = trainer(callbacks=[lambda record: states.append(made.model.head.weight.detach().clone()), open_gate],
                   checkpoints=Checkpoints(tmp_path, best=False, every=1))  # fmt: skip
    made.fit(Rows(*numbers()), epochs=2)
    for epoch, weight in enumerate(states, start=1):
        assert torch.equal(checkpoints.load(tmp_path / f"epoch-{epoch:04d}.pt")["model"]["head.weight"], weight)


def test_requested_cpu_settings_are_saved(tmp_path):
    """Where everything is fixed nothing is measured, yet the checkpoint must hold the settings for a resumed run."""
    options = {"threads": 1, "onednn": "off", "graph": "off", "compile": "off"}
    fitted(epochs=1, checkpoints=Checkpoints(tmp_path), **options)
    onednn, threads, _ = checkpoints.load(tmp_path / checkpoints.LAST)["place"]["mode"][2]
    assert (onednn, threads) == (False, 1)


# When a checkpoint is written


def test_a_checkpoint_is_written_when_the_training_waits_anyway(tmp_path, constants):
    constants(checkpoints, HELD_SECONDS=60.0)
    writer = checkpoints.Writer(tmp_path)
    writer.put({"values": torch.ones(2)}, [checkpoints.LAST])
    time.sleep(0.05)
    assert not (tmp_path / checkpoints.LAST).exists()
    writer.go_on()
    writer._queue.join()
    assert (tmp_path / checkpoints.LAST).exists()
    writer.close()


def test_a_checkpoint_is_not_held_back_for_long(tmp_path, constants):
    constants(checkpoints, HELD_SECONDS=0.01)
    writer = checkpoints.Writer(tmp_path)
    writer.put({"values": torch.ones(2)}, [checkpoints.LAST])
    writer._queue.join()
    assert (tmp_path / checkpoints.LAST).exists()
    writer.close()


@pytest.mark.parametrize("end", ["drain", "close"])
def test_nothing_is_held_back_at_the_end(end, tmp_path, constants):
    constants(checkpoints, HELD_SECONDS=60.0)
    writer = checkpoints.Writer(tmp_path)
    for number in range(3):  # more than the writer accepts without blocking
        writer.put({"values": torch.full((2,), number)}, [checkpoints.LAST, checkpoints.BEST])
    getattr(writer, end)()
    for name in (checkpoints.LAST, checkpoints.BEST):
        assert torch.load(tmp_path / name, weights_only=True)["values"].tolist() == [2, 2]
    writer.close()


def failing(monkeypatch, name, times=1):
    """Let the first `times` writes under this name find the disk full."""
    failures_left, write = [times], checkpoints.write

    def written(state, path, same=None):
        if path.name == name and failures_left[0]:
            failures_left[0] -= 1
            raise OSError(28, "No space left on device")
        return write(state, path, same)

    monkeypatch.setattr(checkpoints, "write", written)


def test_a_missing_best_checkpoint_is_reported_even_if_later_writes_succeed(tmp_path, monkeypatch):
    failing(monkeypatch, checkpoints.BEST)
    writer = checkpoints.Writer(tmp_path)
    writer.put({"epoch": 3}, [checkpoints.LAST, checkpoints.BEST])
    writer.drain()
    assert writer.last_good == tmp_path / checkpoints.LAST
    writer.put({"epoch": 4}, [checkpoints.LAST])
    with pytest.raises(CheckpointNotWritten, match=r"best\.pt: .*No space left.*last good: .*last\.pt"):
        writer.close()


def test_a_write_that_succeeds_later_is_not_a_failure(tmp_path, monkeypatch):
    failing(monkeypatch, checkpoints.BEST)
    writer = checkpoints.Writer(tmp_path)
    for epoch in (3, 4):
        writer.put({"epoch": epoch}, [checkpoints.LAST, checkpoints.BEST])
    writer.close()
    assert torch.load(tmp_path / checkpoints.BEST, weights_only=True) == {"epoch": 4}


def test_the_file_to_resume_from_is_written_last(tmp_path, spied):
    writes = spied(checkpoints, "write")
    writer = checkpoints.Writer(tmp_path)
    writer.put({"epoch": 3}, [checkpoints.LAST, checkpoints.BEST, checkpoints.every_name(3)])
    writer.close()
    assert [write.args[1].name for write in writes] == [checkpoints.BEST, checkpoints.every_name(3), checkpoints.LAST]


def test_moments_share_the_memory_layout_of_their_weights():
    weight = nn.Parameter(torch.randn(3, 5, 2, 2).contiguous(memory_format=torch.channels_last))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    before = {name: value.clone() for name, value in optimizer.state[weight].items()}
    optimizer.state[weight]["exp_avg"] = before["exp_avg"].contiguous()
    run_state._lay_out(optimizer)
    for name, value in optimizer.state[weight].items():
        assert torch.equal(value, before[name])
        assert value.stride() == before[name].stride()


class Root(nn.Module):
    """A model whose value at zero is finite but whose derivative is not."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 1))

    def forward(self, inputs):
        return (inputs @ self.weight).abs().sqrt()


def test_non_finite_weights_of_the_last_step_are_not_saved(tmp_path):
    inputs, targets = numbers(32)
    inputs[-1] = 0
    options = {"model": Root, "shuffle": False, "batch_size": 8, "checkpoints": Checkpoints(tmp_path)}
    with pytest.raises(NonFiniteLoss, match="a weight is not finite after step 4"):
        fitted(train=Rows(inputs, targets), **options)
    assert not list(tmp_path.glob("*.pt"))


def test_early_stopping_is_remembered(tmp_path):
    options = {"evaluate": lambda model: {"flat": 1.0}, "metrics": {}, "patience": 2, "higher_is_better": False}
    _, first = fitted(epochs=6, checkpoints=Checkpoints(tmp_path), **options)
    assert (len(first.epochs), first.stopped_early) == (3, True)
    _, again = fitted(epochs=6, checkpoints=Checkpoints(tmp_path), resume=True, **options)
    assert (len(again.epochs), again.stopped_early) == (3, True)
    _, patient = fitted(epochs=6, checkpoints=Checkpoints(tmp_path), resume=True, **{**options, "patience": 4})
    assert (len(patient.epochs), patient.stopped_early) == (5, True)


def enough(record):
    return "stop" if getattr(record, "scores", None) is not None and record.epoch == 2 else None


def enough_at_once(record):
    return "stop" if getattr(record, "step", None) == 7 else None


def others(record):
    pass


@pytest.mark.parametrize("stops", [enough, enough_at_once])
def test_a_callback_that_stopped_the_run_is_remembered(tmp_path, stops):
    said = []
    options = {"log_every": 1, "checkpoints": Checkpoints(tmp_path), "say": said.append}
    stopped = fitted(epochs=4, callbacks=[stops, others], **options)
    assert len(stopped[1].epochs) == 2
    resumed = fitted(epochs=4, resume=True, callbacks=[others, stops], **options)
    same(outcome(*resumed), outcome(*stopped))
    line = f"nothing to train: callback {stops.__name__} stopped it; leave that callback out to continue"
    assert said.count(line) == 1
    gone_on = fitted(epochs=4, resume=True, callbacks=[others], **options)
    same(outcome(*gone_on), outcome(*fitted(epochs=4)))


def test_a_stop_requested_before_the_interruption_still_ends_the_epoch(tmp_path):
    options = {"log_every": 1, "checkpoints": Checkpoints(tmp_path, steps=1)}
    with pytest.raises(Cut):
        fitted(callbacks=[enough_at_once, cut_at(8)], **options)
    resumed = fitted(resume=True, callbacks=[enough_at_once], **options)
    assert [record.epoch for record in resumed[1].epochs] == [1, 2]
    assert not resumed[1].stopped_early


def test_a_nan_score_is_never_the_best():
    scores = iter([math.nan, 3.0, 2.0, math.nan, 1.0])
    own = {"evaluate": lambda model: {"score": next(scores)}, "higher_is_better": False}
    _, history = fitted(epochs=5, metrics={}, patience=3, **own)
    assert (history.best_epoch, history.stopped_early) == (5, False)


def test_numpy_numbers_are_saved_as_plain_numbers(tmp_path):
    def adam(parameters, lr):
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=np.float64(0.1))

    fitted(optimizer=adam, checkpoints=Checkpoints(tmp_path))
    _, history = fitted(epochs=4, optimizer=adam, checkpoints=Checkpoints(tmp_path), resume=True)
    assert len(history.epochs) == 4


def test_refuses_to_write_what_could_not_be_loaded_again(tmp_path):
    def sgd(parameters, lr):
        made = torch.optim.SGD(parameters, lr=lr)
        made.param_groups[0]["note"] = object()
        return made

    with pytest.raises(CheckpointNotWritten, match=r"the state holds .* of type object"):
        fitted(optimizer=sgd, checkpoints=Checkpoints(tmp_path))


@pytest.mark.parametrize("what", ["groups", "shuffle"])
def test_rejects_another_order_or_optimizer_before_loading_anything(what, tmp_path):
    interrupted(tmp_path, 7, None)

    def in_groups(parameters, lr):
        first, *rest = parameters
        return torch.optim.Adam([{"params": [first]}, {"params": rest}], lr=lr)

    options = {"optimizer": in_groups} if what == "groups" else {"shuffle": False}
    made = trainer(checkpoints=Checkpoints(tmp_path), **options)
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    with pytest.raises(CheckpointOfAnotherModel, match=what):
        made.fit(Rows(*numbers()), Rows(*numbers(seed=1)), 3, resume=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.model.state_dict().items())


def test_averaged_weights_can_be_used_and_are_saved_by_name(tmp_path):
    made, history = fitted(ema=0.9, checkpoints=Checkpoints(tmp_path))
    valid = Rows(*numbers(seed=1))
    with made.averaged() as model:
        assert made.evaluate(valid) == history.epochs[-1].scores
        averaged = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    assert made.evaluate(valid) != history.epochs[-1].scores
    saved = torch.load(tmp_path / "last.pt", weights_only=True)["average"]
    assert saved.keys() == averaged.keys()
    assert all(torch.equal(saved[name], weight) for name, weight in averaged.items())


def test_a_failed_write_is_reported_immediately(tmp_path):
    said = []

    def removed(record):
        if getattr(record, "scores", None) and record.epoch == 1:
            made.say("removed")
            shutil.rmtree(tmp_path / "kept")

    made = trainer(checkpoints=Checkpoints(tmp_path / "kept"), say=said.append, callbacks=[removed])
    with pytest.raises(CheckpointNotWritten):
        made.fit(Rows(*numbers()), Rows(*numbers(seed=1)), 6)
    assert sum("the training continues" in line for line in said) == 1


def test_removes_the_half_written_files_of_a_killed_run(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    leftover, under_way = tmp_path / f".last.pt.{gone.pid}.tmp", tmp_path / f".best.pt.{os.getppid()}.tmp"
    leftover.touch()
    under_way.touch()
    fitted(checkpoints=Checkpoints(tmp_path))
    assert not leftover.exists()
    assert under_way.exists()


def test_a_sink_that_fails_to_close_loses_no_checkpoint(tmp_path):
    class Full:
        def write(self, record): ...

        def close(self):
            raise OSError(28, "No space left on device")

    said = []
    fitted(sinks=[Full()], say=said.append, checkpoints=Checkpoints(tmp_path))
    assert checkpoints.load(tmp_path / "last.pt")["place"]["epoch"] == 3
    assert any("No space left" in line for line in said)


def test_the_checkpoints_of_another_run_are_not_overwritten(tmp_path):
    first = fitted(checkpoints=Checkpoints(tmp_path))
    before = (tmp_path / "last.pt").read_bytes()
    with pytest.raises(CheckpointsInTheWay, match=r"holds the checkpoints of another run \(best.pt, last.pt\)"):
        fitted(epochs=1, checkpoints=Checkpoints(tmp_path))
    assert (tmp_path / "last.pt").read_bytes() == before
    fitted(epochs=1, checkpoints=Checkpoints(tmp_path / "other"))
    with pytest.raises(CheckpointsInTheWay, match="other holds"):
        fitted(resume=tmp_path / "last.pt", checkpoints=Checkpoints(tmp_path / "other"))
    same(outcome(*fitted(checkpoints=Checkpoints(tmp_path / "other", replace=True))), outcome(*first))


def test_resuming_by_itself_begins_or_goes_on(tmp_path):
    for _ in range(2):
        with pytest.raises(Cut):
            fitted(resume="auto", checkpoints=Checkpoints(tmp_path, steps=1), callbacks=[cut_at(8)], log_every=1)
    ended = fitted(resume="auto", checkpoints=Checkpoints(tmp_path))
    same(outcome(*ended), outcome(*fitted()))
    with pytest.raises(NothingToResume, match="resume='auto' needs a recipe with checkpoints"):
        fitted(resume="auto")
