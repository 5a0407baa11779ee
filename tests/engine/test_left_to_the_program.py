"""The engine leaves the program's signal handlers, random streams and gradients alone."""

from __future__ import annotations

import random
import signal

import numpy as np
import pytest
import torch
from torch import nn

from hotlap.engine.data import Tensors
from hotlap.engine.data.batch_size import measure_batch_sizes
from hotlap.engine.interrupts import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("handler", ["ignored", "own"])
def test_signals_handled_by_the_program_are_left_to_it(number, handler):
    seen = []
    before = signal.signal(number, signal.SIG_IGN if handler == "ignored" else lambda *_: seen.append(number))
    interrupts = Interrupts()
    try:
        with interrupts.deferred():
            signal.raise_signal(number)
        interrupts.pass_on()
    finally:
        signal.signal(number, before)
    assert interrupts.received is None
    assert seen == ([number] if handler == "own" else [])


def test_measuring_batch_sizes_leaves_all_streams_and_gradients_alone():
    inputs, targets = torch.randn(64, 6), torch.randn(64, 1)
    model, own = nn.Linear(6, 1), nn.Linear(1, 1)
    optimizer = torch.optim.RMSprop([*model.parameters(), *own.parameters()], lr=0.01)

    def step(model, batch):
        np.random.rand(), random.random()
        return (own(model(batch[0])) - batch[1]).square().mean()

    before = random.getstate(), np.random.get_state()[1].tolist()
    found = measure_batch_sizes(model, optimizer, step, Tensors(inputs, targets), 8, [8, 16], seconds=0.01)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert all(parameter.grad is None for parameter in own.parameters())
    assert found.adaptive
