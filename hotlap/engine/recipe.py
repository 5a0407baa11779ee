"""Everything about a training but the model, the loss, the data and the optimizer; frozen, checked when made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from hotlap.engine.errors import BadRecipe
from hotlap.engine.schedule import Schedule

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Switch = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class Checkpoints:
    """What is kept in `folder`: last.pt always, best.pt by the monitored score, epoch-0004.pt every `every` epochs.

    `steps` also writes last.pt in the middle of an epoch, every so many optimizer steps.
    """

    folder: Path | str
    best: bool = True
    every: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        _require(self.every is None or self.every >= 1, f"checkpoints every {self.every} epochs; use 1 or more")
        _require(self.steps is None or self.steps >= 1, f"checkpoints every {self.steps} steps; use 1 or more")


@dataclass(frozen=True)
class Phase:
    """A stretch of epochs in which the parameters whose names start with one of `frozen` are not trained."""

    epochs: int
    frozen: tuple[str, ...] = ()
    learning_rate: float | None = None  # of all groups; None: as the optimizer was made
    schedule: Schedule | None = None  # over this phase; None: the recipe's
    fresh_optimizer: bool = False  # forgets its moments when the phase begins

    def __post_init__(self) -> None:
        _require(self.epochs >= 1, f"a phase of {self.epochs} epochs; use 1 or more")
        _require(not isinstance(self.frozen, str), f"frozen={self.frozen!r}; give a tuple of names: ({self.frozen!r},)")


@dataclass(frozen=True)
class Recipe:
    batch_size: int
    accumulate: int = 1  # batches an optimizer step
    drop_last: bool = False
    shuffle: bool = True
    evaluation_batch: int | None = None  # None: four times batch_size
    precision: Precision = "tf32"
    channels_last: bool = False
    compile: Switch = "auto"
    graph: Switch = "auto"
    onednn: Switch = "auto"  # on a CPU: small products can be many times faster without it; rounds otherwise
    threads: int | None = None  # on a CPU; None: all or one, by measurement
    activation_checkpointing: bool | tuple[str, ...] = False  # names of blocks; True: the model's children
    clip: float | None = None  # of the norm of all gradients together
    schedule: Schedule | None = None
    warmup: int = 0  # optimizer steps in which the learning rate rises from zero
    loss_weights: Mapping[str, float] = field(default_factory=dict)  # of a loss that is a dict; 1 where not named
    ema: float | None = None  # decay of averaged weights, which evaluation then uses
    nan_guard: bool = True
    monitor: str | None = None  # a score's name; None: the first metric, else the loss
    higher_is_better: bool = False
    patience: int | None = None  # epochs without a better score before it stops
    min_delta: float = 0.0
    seed: int = 0
    log_every: int = 200  # optimizer steps between looks at the losses; the device is not waited for
    checkpoints: Checkpoints | None = None
    phases: tuple[Phase, ...] = ()

    def __post_init__(self) -> None:
        for name in ("batch_size", "accumulate", "log_every"):
            _require(getattr(self, name) >= 1, f"{name}={getattr(self, name)}; use 1 or more")
        for name, kinds in (("precision", Precision), ("compile", Switch), ("graph", Switch), ("onednn", Switch)):
            value = getattr(self, name)
            _require(value in get_args(kinds), f"{name}={value!r}; use one of {', '.join(get_args(kinds))}")
        _require(self.evaluation_batch is None or self.evaluation_batch >= 1, "evaluation_batch must be 1 or more")
        _require(self.clip is None or self.clip > 0, f"clip={self.clip}; use a number above 0, or None")
        _require(self.ema is None or 0 < self.ema < 1, f"ema={self.ema}; use a decay between 0 and 1, or None")
        _require(self.threads is None or self.threads >= 1, f"threads={self.threads}; use 1 or more, or None")
        _require(self.warmup >= 0, f"warmup={self.warmup}; use 0 or more steps")
        _require(self.patience is None or self.patience >= 1, f"patience={self.patience}; use 1 or more epochs")
        object.__setattr__(self, "phases", tuple(self.phases))
        object.__setattr__(self, "loss_weights", dict(self.loss_weights))


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise BadRecipe(why)
