"""Trainings of several processes that fail, which test_failing_processes.py runs under torchrun."""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path

import torch

from hotlap.engine import RMSE, Callback, Checkpoints, Mean
from tests.engine.shared_trainings import Plain
from tests.engine.training import Rows, Stream, fitted, numbers, trainer

RANK = int(os.environ.get("RANK", "0"))


def breaks_in_second(number, batch):
    if RANK == 1 and number == 2:
        raise ValueError("row 37 cannot be read")
    return batch


def dataset(folder):
    fitted(model=Plain, distributed="ddp", train=Stream(*numbers(), altered=breaks_in_second))


class Breaks(Callback):
    def epoch(self, training, record):
        if RANK == 1:
            raise ValueError("the callback of process 1 broke")


def callback(folder):
    """While shards are written, to which all processes contribute."""
    kept = Checkpoints(folder / "shards", steps=1)
    fitted(model=Plain, distributed="fsdp", callbacks=[Breaks()], checkpoints=kept)


def metric(folder):
    def broken(outputs, targets):
        if RANK == 1:
            raise ValueError("the metric of process 1 broke")
        return (outputs - targets).abs()

    fitted(model=Plain, distributed="ddp", metrics={"mine": Mean(broken, higher_is_better=False)})


def shapes(folder):
    """The same mistake in every process, seen in the first step."""
    inputs, targets = numbers()
    fitted(model=Plain, distributed="ddp", train=Rows(inputs, targets.squeeze(1)))


def in_the_way(folder):
    (folder / "kept").mkdir(exist_ok=True)
    (folder / "kept" / "last.pt").touch()
    fitted(model=Plain, distributed="ddp", checkpoints=Checkpoints(folder / "kept"))


def unwritable(folder):
    """Only the first process looks at the folder."""
    (folder / "file").touch()
    fitted(model=Plain, distributed="ddp", checkpoints=Checkpoints(folder / "file" / "kept"))


def forgotten(folder):
    fitted(model=Plain)


def different(folder):
    fitted(model=Plain, distributed="ddp", train=Rows(*numbers(70 + RANK)))


def evaluated_alone(folder):
    made = trainer(model=Plain, distributed="ddp", metrics={"rmse": RMSE()})
    made.fit(Rows(*numbers()), None, 1)
    if made.is_first:
        made.evaluate(Rows(*numbers()))


def endless(folder):
    """A training that only a signal ends: a step takes a fifth of a second, and the losses are never looked at."""

    class Slow(Plain):
        def forward(self, inputs):
            time.sleep(0.1 * self.training)
            (folder / f"trains-{RANK}").touch()
            return super().forward(inputs)

    kept = Checkpoints(folder / "kept")
    fitted(model=Slow, distributed=os.environ["WAY"], epochs=10_000, log_every=10**9, resume="auto", checkpoints=kept)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    globals()[sys.argv[1]](Path(sys.argv[2]))
