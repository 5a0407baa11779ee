"""A rehearsal runs a model once more and leaves no trace of it."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from tqdm import tqdm

from hotlap.catalog.cuda_graphs.rules import why_not_optimizer
from hotlap.runtime.other_threads import why_not_alone
from hotlap.runtime.rehearsal import NotAlone, rehearse, signature

INPUTS = torch.ones(4, 3)


class Leaving(nn.Module):
    """The model's forward leaves behind everything that real programs do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.codebook = nn.Parameter(torch.ones(3), requires_grad=False)
        self.average = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("count", torch.zeros(()))
        self.streams = [torch.Generator().manual_seed(1), random.Random(1), np.random.RandomState(1)]
        self.numpys = np.random.default_rng(1)
        self.seen, self.calls, self.last = [], 0, deque([None], maxlen=1)

    def forward(self, inputs):
        self.calls += 1
        self.seen.append(inputs)
        self.last.append(inputs)
        self.count.add_(1)
        self.codebook = nn.Parameter(self.codebook * 2, requires_grad=False)
        with torch.no_grad():
            self.average.mul_(0.5)
        print("forward", file=sys.stderr)
        noise = torch.rand(3, generator=self.streams[0]) + self.streams[1].random() + self.streams[2].rand()
        return self.layer(inputs) + noise + self.numpys.random()


def drawn(model):
    first, second, third = model.streams
    return float(torch.rand((), generator=first)), second.random(), third.rand(), model.numpys.random()


def test_a_rehearsal_leaves_nothing_behind(capfd):
    model, untouched = Leaving(), Leaving()
    codebook = model.codebook
    assert rehearse(torch, model, (INPUTS,), {}).kept
    assert (model.calls, model.seen, list(model.last), float(model.count)) == (0, [], [None], 0.0)
    assert model.codebook is codebook
    assert torch.equal(model.average, torch.ones(3))
    assert drawn(model) == drawn(untouched)
    assert capfd.readouterr().err == ""


def test_output_of_another_thread_is_not_lost(capsys):
    class Waiting(nn.Linear):
        def forward(self, inputs):
            print("ours")
            thread = threading.Thread(target=print, args=("theirs",))
            thread.start()
            thread.join()
            return super().forward(inputs)

    rehearse(torch, Waiting(3, 3), (INPUTS,), {})
    assert capsys.readouterr().out == "theirs\n"


def test_filling_a_container_counts_as_keeping_a_result():
    class Filling(nn.Linear):
        def forward(self, inputs):
            self.features.append(inputs)
            return super().forward(inputs)

    model = Filling(3, 3)
    model.features = []
    assert rehearse(torch, model, (INPUTS,), {}).kept


@pytest.mark.parametrize(("first", "second"), [(True, False), (1, 2), ("a", "b"), (object(), object())])
def test_another_value_may_take_another_way(first, second):
    assert signature(torch, (INPUTS, first), {}) != signature(torch, (INPUTS, second), {})
    assert signature(torch, (INPUTS, first), {}) == signature(torch, (INPUTS, first), {})


def test_refuses_to_rehearse_while_another_thread_runs():
    begin, end = threading.Event(), threading.Event()

    def draw():
        begin.set()
        end.wait()

    thread = threading.Thread(target=draw)
    thread.start()
    begin.wait()
    with pytest.raises(NotAlone, match=r"another thread of the program is running \(test_rehearsal.py:\d+\)"):
        rehearse(torch, nn.Linear(3, 3), (INPUTS,), {})
    end.set()
    thread.join()
    rehearse(torch, nn.Linear(3, 3), (INPUTS,), {})


def test_idle_and_library_threads_are_no_obstacle():
    pool = ThreadPoolExecutor(1)
    pool.submit(print).result()
    while why_not_alone() is not None:  # the worker is about to wait for more
        time.sleep(0.01)
    bar = tqdm(total=3, file=sys.stderr)
    assert threading.active_count() > 1, "tqdm watches its bars"
    rehearse(torch, nn.Linear(3, 3), (INPUTS,), {})
    bar.close()
    pool.shutdown()


def test_a_replaced_call_of_modules_is_not_rehearsed(monkeypatch):
    own = torch.nn.Module.__call__
    monkeypatch.setattr(torch.nn.Module, "__call__", lambda self, *args, **kwargs: own(self, *args, **kwargs))
    with pytest.raises(NotAlone, match="the program has replaced the call of modules"):
        rehearse(torch, torch.nn.Linear(2, 1), (torch.ones(1, 2),), {})


def test_a_replaced_step_is_not_replayed(monkeypatch):
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    assert why_not_optimizer(torch, optimizer) is None
    own = torch.optim.SGD.step
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self, *args, **kwargs: own(self, *args, **kwargs))
    assert why_not_optimizer(torch, optimizer) == "the program has replaced the step of SGD"
