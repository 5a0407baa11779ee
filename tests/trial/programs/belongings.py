"""A training with state of its own: generators, a scheduler, an average and arrays, half of it in a function.

The variable HARM says what to do to it in each step, and to nothing else.
"""

import os
import random
import sys
import tempfile
import threading
import time

import numpy as np
import torch
from torch import nn


class Average:
    def __init__(self, model):
        self.shadow = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for name, weight in model.named_parameters():
            self.shadow[name].mul_(0.9).add_(weight, alpha=0.1)


class Meter:
    def __init__(self):
        self.seconds = np.zeros(100)  # differ each time
        self.threads = [threading.current_thread()]
        self.unset = np.empty(3, dtype=object)


def leave_file(step, *_):
    with open(f"{tempfile.gettempdir()}/{os.getpid()}-{step}", "wb") as file:  # noqa: PTH123 as programs do
        file.write(b"x" * 1000)


def leave_thread(step, *_):
    if step % 5 == 0:
        threading.Thread(target=threading.Event().wait, daemon=True).start()


def zero(step, average, schedule):
    for weight in average.shadow.values():
        weight.zero_()


def keep(step, *_):
    HARMS["kept"] = torch.rand(3, generator=torch.Generator().manual_seed(step)), np.ones(step)


HARMS = {
    "": lambda *_: None,
    "numpy generator": lambda *_: rng.random(),
    "random.Random": lambda *_: shuffler.random(),
    "torch.Generator": lambda *_: torch.rand(1, generator=generator),
    "schedule": lambda step, average, schedule: schedule.milestones.clear(),
    "average": zero,
    "array": lambda *_: table.fill(1),
    "threads": leave_thread,
    "temporary files": leave_file,
    "none": keep,
}


def main():
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3000])
    average = Average(model)
    meter = Meter()
    for step in range(int(sys.argv[1])):
        began = time.perf_counter()
        batch = inputs[torch.randint(64, (8,))]
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        average.update(model)
        HARMS[os.environ.get("HARM", "")](step, average, schedule)
        meter.seconds[step % 100] = time.perf_counter() - began


rng = np.random.default_rng(0)
shuffler = random.Random(0)
generator = torch.Generator().manual_seed(3)
table = np.zeros((4, 4), dtype=np.int64)
main()
