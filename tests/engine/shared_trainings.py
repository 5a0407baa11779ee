"""Trainings that test_processes.py runs in one process and, by forked_launches.py, in several."""

from __future__ import annotations

import contextlib
import io
import os
import signal

import torch
import torch.distributed as torch_distributed
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

from hotlap.engine import RMSE, Accuracy, Callback, Checkpoints, Cosine, JsonLines, Mean, Metric, sharding
from hotlap.engine.data import Loader
from hotlap.engine.errors import BadRecipe, EngineError
from hotlap.engine.log import to_stderr
from tests.engine.training import Net, Rows, Stream, cut_at, fitted, numbers, outcome, trainer

PROCESSES = {"four": 4, "together": 2}  # how many each of these functions is launched in


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
    return {"size": float(model(numbers()[0]).abs().mean())}


def by_loader():
    return DataLoader(TensorDataset(*numbers()), batch_size=16, shuffle=True)


def parts(outputs, targets):
    return {"square": (outputs - targets).square().mean(), "absolute": (outputs - targets).abs().mean()}


def two_optimizers(parameters, lr):
    first, *others = parameters
    return [torch.optim.SGD([first], lr=lr), torch.optim.Adam(others, lr=lr)]


class Change(Callback):
    """Changes the training alike in every process."""

    def step(self, training, record):
        if training.step == 3:
            training.scale_learning_rates(0.5)
            with torch.no_grad():
                training.model.body[0].bias.zero_()


SAME = {
    "two-optimizers": lambda: {"optimizer": two_optimizers, "clip": 0.5},
    "changed": lambda: {"callbacks": [Change()], "log_every": 1},
    "plain": dict,
    "shares-of-different-sizes": lambda: {"train": Rows(*numbers(71))},
    "nothing-left-for-one": lambda: {"train": Rows(*numbers(65))},
    "streamed": lambda: {"train": Stream(*numbers(71)), "valid": Stream(*numbers(69, seed=1))},
    "loader": lambda: {"train": by_loader()},
    "loader-streamed": lambda: {"train": Loader(by_loader(), keep=False)},
    "iterable": lambda: {"train": iterable(71), "valid": iterable(69)},
    "iterable-with-workers": lambda: {"train": iterable(65, workers=2)},
    "sometimes-used": lambda: {"model": Sometimes},
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
            "rows": Counted(),
            "mean": Mean(lambda outputs, targets: (outputs - targets).abs()),
            "accuracy": Accuracy(0.5, of=lambda outputs, targets: (outputs, targets > 0.5)),
        },
        "train_metrics": {"train": RMSE()},
        "evaluation_batch": 8,
        "valid": Rows(*numbers(69, seed=1)),
    },
}


FEW = ("nothing-left-for-one", "accumulated", "metrics", "iterable", "sometimes-used")


SHARDED = (
    "two-optimizers",
    "changed",
    "nothing-left-for-one",
    "streamed",
    "iterable",
    "accumulated",
    "steps",
    "averaged",
    "own-step",
    "own-score",
)


def alike(options, **more):
    return outcome(*fitted(**{"model": Plain, "epochs": 2, **options, **more}))


def resumed(folder):
    """Dropout and running statistics differ between processes; a resumed run still ends as one that was not."""
    options = {"model": Net, "distributed": "ddp", "train_metrics": {"train": RMSE()}}
    whole = outcome(*fitted(epochs=3, **options))
    fitted(epochs=1, checkpoints=Checkpoints(folder), **options)
    again = outcome(*fitted(epochs=3, resume="auto", checkpoints=Checkpoints(folder), **options))
    return whole, again


class Rest(IterableDataset):
    """Every so many rows; several workers share them out."""

    def __init__(self, rows, step=1):
        self.rows, self.step = rows, step

    def __iter__(self):
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return iter(list(zip(*numbers(self.rows), strict=True))[first :: step * self.step])


def iterable(rows, workers=0):
    return Loader(DataLoader(Rest(rows), 16, num_workers=workers), rows=rows)


def refused():
    said = []
    apart = Loader(DataLoader(Rest(70, 1 + int(os.environ["RANK"])), 16), rows=30)
    for options in ({"batch_size": 15}, {"graph": "on"}, {"train": apart}, {"distributed": None}):
        try:
            fitted(**{"model": Plain, "distributed": "ddp", **options})
        except BadRecipe as error:
            said.append(str(error))
    return said


class Sometimes(Plain):
    """Weights that have no gradient in some steps, the first among them."""

    calls = 0

    def forward(self, inputs):
        self.calls += self.training
        outputs = super().forward(inputs)
        if self.training and self.calls % 3 == 2:
            outputs = outputs + self.unused(inputs[:, :2]).mean(1, keepdim=True)
        return outputs


class Moving(nn.Module):
    """Buffers that each step changes, in place and by another tensor, and on which the next step depends.

    A bias before the normalisation would have no gradient but rounding errors, of which Adam makes whole steps.
    """

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 1))
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("positive", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
            self.positive += (inputs > 0).sum()
        return self.body(inputs - self.mean)


def buffers():
    seen = []

    class Look(Callback):
        def step(self, training, record):
            seen.extend(buffer.clone() for buffer in training.model.buffers())

    fitted(model=Moving, distributed="ddp", log_every=1, callbacks=[Look()], train=Rows(*numbers(64)))
    return seen


class Drawn(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.rand(6), torch.zeros(1)


def drawn():
    """Return the random numbers that the workers of this process drew."""
    seen = []

    def step(model, batch):
        seen.append(batch[0].flatten())
        return square_error(model, batch)

    loader = Loader(DataLoader(Drawn(), 16, num_workers=1), keep=False)
    fitted(model=Plain, distributed="ddp", epochs=1, train=loader, loss=None, step=step, metrics={}, shuffle=False)
    return torch.cat(seen)


def messages(accumulate):
    """Count what is sent in two epochs."""
    sent, send = [], torch_distributed.all_reduce

    def counted(*arguments, **options):
        sent.append(arguments)
        return send(*arguments, **options)

    torch_distributed.all_reduce = counted
    try:
        fitted(model=Plain, distributed="ddp", epochs=2, accumulate=accumulate)
    finally:
        torch_distributed.all_reduce = send
    return len(sent)


class Counted(Metric):
    """How many rows were evaluated."""

    higher_is_better = True

    def __init__(self):
        super().__init__(1)

    def update(self, outputs, *targets):
        self.totals += len(outputs)

    def compute(self):
        return self.totals[0]


def stopped(callbacks_called):
    """Only the first process calls callbacks, and what they return counts for all."""

    def stop(record):
        callbacks_called.append(record)
        return "stop"

    _, history = fitted(model=Plain, distributed="ddp", callbacks=[stop], epochs=3)
    return len(history.epochs)


def logged(file):
    """Log to one file, print progress, and return what this process wrote to its terminal."""
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
        options = {"sinks": [JsonLines(file)], "say": to_stderr, "progress": "lines"}
        fitted(model=Plain, distributed="ddp", epochs=2, **options)
    return written.getvalue().splitlines()


def joined(made, history):
    tensors, scores = outcome(made, history)
    return [tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for tensor in tensors], scores


def sharded(options, **more):
    return joined(*fitted(**{"model": Plain, "epochs": 2, **options, "distributed": "fsdp", **more}))


def resumed_shards(folder):
    """A run that goes on with its shards, from within an epoch, ends as one that was not interrupted."""
    options = {"train_metrics": {"train": RMSE()}, "ema": 0.9, "epochs": 3}
    whole = sharded(options)
    with contextlib.suppress(KeyboardInterrupt):  # a signal to the first process interrupts all
        kept = Checkpoints(folder, steps=3, best=2)
        sharded(options, checkpoints=kept, log_every=1, callbacks=[cut_at(9, signal.SIGINT)])
    return whole, sharded(options, resume="auto", checkpoints=Checkpoints(folder, best=2))


class Weighted(nn.Module):
    """A loss with a weight of its own, which is not shared out."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, outputs, targets):
        return (self.weight.exp() * (outputs - targets).square()).mean() - self.weight


def with_loss(distributed):
    loss = Weighted()

    def optimizer(parameters, lr):
        return torch.optim.SGD([*parameters, *loss.parameters()], lr=lr / 8, momentum=0.9)

    options = {"loss": loss, "optimizer": optimizer, "accumulate": 3, "clip": 0.5, "metrics": {}}
    made, history = fitted(model=Plain, epochs=2, distributed=distributed, **options)
    weights = [getattr(value, "full_tensor", lambda value=value: value)() for value in made.model.state_dict().values()]
    return [*weights, loss.weight.detach()], joined(made, history)[1]


def around(distributed):
    """Evaluate before training, then predict, one row more than can be shared equally."""
    made = trainer(model=Plain, distributed=distributed, evaluation_batch=16)
    before = made.evaluate(Rows(*numbers(65)))
    made.fit(Rows(*numbers()), None, 1)
    return before, made.predict(Rows(*numbers(65)))


def refused_shards():
    said = []
    made = trainer(model=Plain, distributed="fsdp")
    for work in (
        lambda: made.export("model.pt2", numbers()),
        lambda: made.try_learning_rates(numbers()),
        lambda: sharded({}, compile="on"),
        lambda: sharded({}, channels_last=True),
        lambda: sharded({}, train=Rows(numbers()[0] * torch.inf, numbers()[1])),
    ):
        try:
            work()
        except EngineError as error:
            said.append(str(error))
    return said


def four(folder):
    """Four processes, with whole weights and with weights shared out: a block goes by itself."""
    sharding.LEAST = 50
    found = {f"ddp {name}": alike(SAME[name](), distributed="ddp") for name in FEW}
    found |= {f"fsdp {name}": sharded(SAME[name]()) for name in SHARDED}
    found["resumed"] = resumed_shards(folder / "resumed-shards")
    found["with loss"], found["around"], found["refused"] = with_loss("fsdp"), around("fsdp"), refused_shards()
    sharded({}, epochs=1, checkpoints=Checkpoints(folder / "shards"))
    torch.save(found, folder / f"rank-{os.environ['RANK']}.pt")


def together(folder):
    rank, called = int(os.environ["RANK"]), []
    found = {name: alike(options(), distributed="ddp") for name, options in SAME.items()}
    found["resumed"] = resumed(folder / "resumed")
    fitted(model=Plain, epochs=1, distributed="ddp", checkpoints=Checkpoints(folder / "handed-on"))
    found["stopped"] = stopped(called), len(called)
    found["refused"], found["buffers"], found["drawn"] = refused(), buffers(), drawn()
    found["messages"] = {count: messages(count) for count in (1, 3)}
    found["logged"] = logged(folder / "log.jsonl")
    kept = Checkpoints(folder / "shards")
    found["continued"] = sharded({}, epochs=3, resume=True, checkpoints=kept)
    torch.save(found, folder / f"rank-{rank}.pt")
