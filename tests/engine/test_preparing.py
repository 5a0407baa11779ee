"""The preparation of a phase is timed apart from its training, and leaves no trace in it."""

from __future__ import annotations

import time

import pytest
import torch

from hotlap.engine import Phase
from tests.engine.tape import EmulatedRecorder
from tests.engine.training import Net, Stream, fitted, numbers, outcome, same

SLOW, USUAL = 100.0, 1.0  # seconds of a forward, on a clock that only forwards move


class Library:
    """A library with a memory of its own, which the engine cannot restore."""

    def __init__(self, clock):
        self.clock, self.known = clock, set()

    def called(self, trained):
        self.clock.append(self.clock[-1] + (USUAL if trained in self.known else SLOW))
        self.known.add(trained)


class Autotuned(Net):
    """A model whose first forward in each phase is slow, as when cuDNN chooses convolutions by measurement."""

    def __init__(self, clock):
        super().__init__()
        self.library = Library(clock)

    def forward(self, inputs):
        if self.training:
            self.library.called(sum(parameter.requires_grad for parameter in self.parameters()))
        return super().forward(inputs)


@pytest.mark.parametrize("train", [None, Stream(*numbers())], ids=["resident", "streamed"])
def test_preparation_of_a_phase_does_not_count_as_training(train, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[-1])
    phases = (Phase(2, frozen=("body",)), Phase(2))
    _, history = fitted(
        4, train, recorder=EmulatedRecorder(), monkeypatch=monkeypatch, model=lambda: Autotuned(clock), graph="on",
        phases=phases, drop_last=True,
    )  # fmt: skip
    assert [record.seconds for record in history.epochs] == [USUAL, 0.0, USUAL, 0.0]  # a replay calls no forward
    assert [record.prepare_seconds >= SLOW for record in history.epochs] == [True, False, True, False]
    assert sum(record.seconds + record.prepare_seconds for record in history.epochs) == clock[-1]


class Remembers(Net):
    """A model that counts on the host, and makes a buffer when it is first called."""

    def __init__(self):
        super().__init__(dropout=0.0)
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        if not hasattr(self, "mean"):
            self.register_buffer("mean", torch.zeros(6))
        if self.training:
            self.mean.lerp_(inputs.detach().mean(0), 0.1)
        return super().forward(inputs - self.mean)


def test_a_rehearsal_leaves_nothing_in_the_model(monkeypatch):
    """With a single step nothing is chosen, so that any difference would come from the rehearsal."""
    options = {"model": Remembers, "batch_size": 70}
    found = fitted(1, recorder=EmulatedRecorder(), monkeypatch=monkeypatch, **options)
    monkeypatch.undo()
    plain = fitted(1, **options)
    same(outcome(*found), outcome(*plain))
    assert found[0].model.calls == plain[0].model.calls
