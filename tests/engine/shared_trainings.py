"""Trainings that test_processes.py runs in one process and, by this program under torchrun, in several."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hotlap.engine import RMSE, Accuracy, Checkpoints, Cosine, Mean
from hotlap.engine.data import Loader
from hotlap.engine.errors import BadRecipe
from tests.engine.training import Net, Rows, Stream, fitted, numbers, outcome


class Plain(nn.Module):
    """No random numbers and no running statistics: several processes compute what one does, but for rounding."""

    def __init__(self):
        super().__init__()
        self.body, self.unused = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)), nn.Linear(2, 2)

    def forward(self, inputs):
        return self.body(inputs)


def square_error(model, batch):
    inputs, targets = batch
    return (model(inputs) - targets).square().mean()


def score(model):
    return {"weight": float(model.body[0].weight.abs().sum())}


def by_loader():
    return DataLoader(TensorDataset(*numbers()), batch_size=16, shuffle=True)


def parts(outputs, targets):
    return {"square": (outputs - targets).square().mean(), "absolute": (outputs - targets).abs().mean()}


SAME = {
    "plain": dict,
    "shares-of-different-sizes": lambda: {"train": Rows(*numbers(71))},
    "nothing-left-for-one": lambda: {"train": Rows(*numbers(65))},
    "streamed": lambda: {"train": Stream(*numbers(71)), "valid": Stream(*numbers(69, seed=1))},
    "loader": lambda: {"train": by_loader()},
    "loader-streamed": lambda: {"train": Loader(by_loader(), keep=False)},
    "accumulated": lambda: {"train": Rows(*numbers(71)), "accumulate": 3},
    "steps": lambda: {"train": Rows(*numbers(71)), "steps_per_epoch": 7, "clip_value": 0.1},
    "clipped": lambda: {"clip": 0.1, "schedule": Cosine(), "warmup": 3},
    "averaged": lambda: {"ema": 0.9},
    "parts": lambda: {"loss": parts, "loss_weights": {"absolute": 0.5}},
    "own-step": lambda: {"loss": None, "step": square_error, "metrics": {}},
    "own-score": lambda: {"evaluate": score, "patience": 2, "higher_is_better": True},
    "metrics": lambda: {
        "metrics": {
            "rmse": RMSE(),
            "mean": Mean(lambda outputs, targets: (outputs - targets).abs()),
            "accuracy": Accuracy(0.5, of=lambda outputs, targets: (outputs, targets > 0.5)),
        },
        "train_metrics": {"train": RMSE()},
        "evaluation_batch": 8,
    },
}


def alike(options, **more):
    return outcome(*fitted(model=Plain, **{"epochs": 2, **options, **more}))


def resumed(folder):
    """Dropout and running statistics differ between processes; a resumed run still ends as one that was not."""
    options = {"model": Net, "distributed": "ddp", "train_metrics": {"train": RMSE()}}
    whole = outcome(*fitted(epochs=3, **options))
    fitted(epochs=1, checkpoints=Checkpoints(folder), **options)
    again = outcome(*fitted(epochs=3, resume="auto", checkpoints=Checkpoints(folder), **options))
    return whole, again


class Endless(IterableDataset):
    def __iter__(self):
        return iter(zip(*numbers(), strict=True))


def refused():
    said = []
    for options in ({"batch_size": 15}, {"train": Loader(Endless(), rows=70)}, {"graph": "on"}):
        try:
            fitted(model=Plain, distributed="ddp", **options)
        except BadRecipe as error:
            said.append(str(error))
    try:
        fitted(model=Late, distributed="ddp")
    except BadRecipe as error:
        said.append(str(error))
    try:
        fitted(model=Plain)
    except BadRecipe as error:
        said.append(str(error))
    return said


class Late(Plain):
    """A weight that is first used in the third step."""

    calls = 0

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs) + (self.unused(inputs[:, :2]).mean() if self.calls > 2 else 0.0)


def stopped(callbacks_called):
    """Only the first process calls callbacks, and what they return counts for all."""

    def stop(record):
        callbacks_called.append(record)
        return "stop"

    _, history = fitted(model=Plain, distributed="ddp", callbacks=[stop], epochs=3)
    return len(history.epochs)


def together(folder):
    rank, called = int(os.environ["RANK"]), []
    found = {name: alike(options(), distributed="ddp") for name, options in SAME.items()}
    found["resumed"] = resumed(folder / "resumed")
    fitted(model=Plain, epochs=1, distributed="ddp", checkpoints=Checkpoints(folder / "handed-on"))
    found["stopped"] = stopped(called), len(called)
    found["refused"] = refused()
    torch.save(found, folder / f"rank-{rank}.pt")


def killed(folder):
    """Rank 1 dies once, in the middle of the second epoch; the launcher starts all processes again."""
    trace = folder / "killed"

    class Dying(Plain):
        calls = 0

        def forward(self, inputs):
            if self.training and os.environ["RANK"] == "1" and not trace.exists():
                self.calls += 1
                if self.calls == 8:
                    trace.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            return super().forward(inputs)

    options = {"distributed": "ddp", "log_every": 1, "checkpoints": Checkpoints(folder / "kept", steps=1)}
    found = outcome(*fitted(model=Dying, epochs=3, resume="auto", **options))
    torch.save(found, folder / f"rank-{os.environ['RANK']}.pt")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    {"together": together, "killed": killed}[sys.argv[1]](Path(sys.argv[2]))
