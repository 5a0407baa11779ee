"""Trainings of several processes that fail, are killed or are on two machines; forked_launches.py launches them."""

from __future__ import annotations

import os
import signal
import time

import torch

from hotlap.engine import RMSE, Callback, Checkpoints, Mean
from tests.engine.shared_trainings import Plain, joined
from tests.engine.training import Rows, Stream, fitted, numbers, trainer


def rank():
    return int(os.environ["RANK"])


def attempt():
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def dataset(folder):
    def breaks_in_second(number, batch):
        if rank() == 1 and number == 2:
            raise ValueError("row 37 cannot be read")
        return batch

    fitted(model=Plain, distributed="ddp", train=Stream(*numbers(), altered=breaks_in_second))


class Breaks(Callback):
    def epoch(self, training, record):
        if rank() == 1:
            raise ValueError("the callback of process 1 broke")


def callback(folder):
    """While shards are written, to which all processes contribute."""
    kept = Checkpoints(folder / "shards", steps=1)
    fitted(model=Plain, distributed="fsdp", callbacks=[Breaks()], resume="auto", checkpoints=kept)


def metric(folder):
    def broken(outputs, targets):
        if rank() == 1:
            raise ValueError("the metric of process 1 broke")
        return (outputs - targets).abs()

    fitted(model=Plain, distributed="ddp", metrics={"mine": Mean(broken, higher_is_better=False)})


def shapes(folder):
    """The same mistake in every process, seen in the first step."""
    inputs, targets = numbers()
    fitted(model=Plain, distributed="ddp", train=Rows(inputs, targets.squeeze(1)))


def occupied(folder):
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
    fitted(model=Plain, distributed="ddp", train=Rows(*numbers(70 + rank())))


def lonely(folder):
    """Only the first process evaluates."""
    made = trainer(model=Plain, distributed="ddp", metrics={"rmse": RMSE()})
    made.fit(Rows(*numbers()), None, 1)
    if made.is_first:
        made.evaluate(Rows(*numbers()))


def endless(folder):
    """Only a signal ends it: nobody looks at the losses, and an epoch takes long."""

    class Slow(Plain):
        def forward(self, inputs):
            time.sleep(0.05)
            (folder / f"trains-{rank()}").touch()
            return super().forward(inputs)

    options = {"train": Rows(*numbers(16_000)), "log_every": 10**9, "checkpoints": Checkpoints(folder / "kept")}
    fitted(model=Slow, distributed="ddp", resume="auto", **options)


MOMENTS = ((1, 2), (0, 7), (1, 12))  # which process dies at which step, in the first three attempts


def killed(folder):
    """Dropout and running statistics are part of what continues; a checkpoint is written after each step."""
    found = {way: (joined(*fitted(distributed=way)), killed_again(folder, way)) for way in ("ddp", "fsdp")}
    torch.save(found, folder / f"rank-{rank()}.pt")


def killed_again(folder, way):
    began = folder / f"{way}-began-in"
    if rank() == 0 and not began.exists():
        began.write_text(str(attempt()))

    class Dying(Callback):
        def step(self, training, record):
            number = attempt() - int(began.read_text())
            if number < len(MOMENTS) and (rank(), training.step) == MOMENTS[number]:
                os.kill(os.getpid(), signal.SIGKILL)

    options = {"log_every": 1, "callbacks": [Dying()], "checkpoints": Checkpoints(folder / way, steps=1)}
    return joined(*fitted(distributed=way, resume="auto", **options))


def on_two_machines(folder):
    """Each has a folder of its own, which the other does not see."""
    own = folder / f"machine-{os.environ['GROUP_RANK']}"
    fitted(model=Plain, distributed="ddp", epochs=1, checkpoints=Checkpoints(own))
    found = joined(*fitted(model=Plain, distributed="ddp", epochs=3, resume="auto", checkpoints=Checkpoints(own)))
    torch.save(found, folder / f"rank-{rank()}.pt")
