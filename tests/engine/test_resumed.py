"""What a resumed run computes and reports, and what its checkpoints cost."""

from __future__ import annotations

import copy

import pytest
import torch

from hotlap.engine import Recipe, Trainer
from hotlap.engine.checkpoints import LAST
from hotlap.engine.data import Tensors
from hotlap.engine.errors import NonFiniteLoss
from hotlap.engine.recipe import Checkpoints
from tests.engine.regression import FEW, INPUTS, MSE, TARGETS, network, sgd, trainer


def test_a_run_resumed_before_its_short_last_step_computes_as_before(tmp_path, monkeypatch):
    """The measured choice of threads and oneDNN also applies to what comes before the next whole step."""
    from hotlap.engine import processor

    used = []
    monkeypatch.setattr(processor, "use", lambda way: used.append(way))
    model = network()
    how = {"batch_size": 20, "checkpoints": Checkpoints(tmp_path, steps=3), "log_every": 1}
    with pytest.raises(KeyboardInterrupt):
        trainer(model, sgd(model), **how).fit(StopsAfter(3), epochs=2)
    state = torch.load(tmp_path / LAST, weights_only=True)
    state["place"]["mode"] = [False, False, [True, 1, " on one thread"], False, False, False]
    torch.save(state, tmp_path / LAST)
    used.clear()
    again = trainer(model, sgd(model), **how)
    with pytest.raises(KeyboardInterrupt):
        again.fit(StopsAfter(1), epochs=2, resume=True)
    assert processor.Way(True, 1, " on one thread") in used
    assert torch.load(tmp_path / LAST, weights_only=True)["place"]["mode"] == state["place"]["mode"]


class StopsAfter(Tensors):
    """64 rows, whose gather is interrupted after `steps` steps."""

    def __init__(self, steps):
        super().__init__(INPUTS[:64], TARGETS[:64])
        self.left = steps

    def gather(self, rows):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super().gather(rows)


def test_reports_optimizer_settings_that_differ_from_the_checkpoint(tmp_path):
    model, said = network(), []
    how = {"checkpoints": Checkpoints(tmp_path)}
    trainer(model, sgd(model), **how).fit(FEW, epochs=1)
    trainer(model, sgd(model, weight_decay=0.1), say=said.append, **how).fit(FEW, epochs=2, resume=True)
    assert "the optimizer uses weight_decay=0 from the checkpoint; 0.1 was given" in said


def test_a_finished_run_says_that_there_is_nothing_to_do(tmp_path):
    model, said = network(), []
    how = {"checkpoints": Checkpoints(tmp_path)}
    trainer(model, sgd(model), **how).fit(FEW, epochs=2)
    history = trainer(model, sgd(model), say=said.append, **how).fit(FEW, epochs=2, resume=True)
    assert len(history.epochs) == 2
    assert "nothing to train: 2 epochs are already trained, and 2 were requested; raise epochs to continue" in said


def test_a_failed_checkpoint_does_not_hide_the_original_error(tmp_path, answering):
    answering("hotlap.engine.checkpoints", write=OSError(28, "No space left on device"))
    model, said = network(), []
    broken = Tensors(torch.cat([INPUTS[:63], torch.full((1, 5), torch.nan)]), TARGETS[:64])
    how = {"checkpoints": Checkpoints(tmp_path, steps=1), "shuffle": False, "log_every": 1}
    with pytest.raises(NonFiniteLoss):
        trainer(model, sgd(model), say=said.append, **how).fit(broken, epochs=1)
    assert any("No space left on device" in line for line in said)


def test_an_interrupt_does_not_claim_a_checkpoint_that_was_not_written(tmp_path, answering):
    answering("hotlap.engine.checkpoints", write=OSError(28, "No space left on device"))
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
    from hotlap.engine.run_state import Position

    record = EpochRecord(
        epoch=1, loss=1.0, scores={}, seconds=1.0, evaluation_seconds=0.0, prepare_seconds=0.0, rows=1, steps=1,
        learning_rate=0.1, losses={}, train_scores={},
    )  # fmt: skip
    place = Position(epochs=[copy.copy(record) for _ in range(100)])
    first = place.records()
    place.epochs.append(record)
    second = place.records()
    assert len(second) == 101
    assert all(earlier is later for earlier, later in zip(first, second, strict=False))
    aside, _ = set_aside({"epochs": second})
    assert type(aside["epochs"]) is list
    assert aside["epochs"][0] is first[0]
