"""Everything about a training but the model, the loss, the data and the optimizer; frozen, and checked when created."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from hotlap.engine.errors import BadRecipe
from hotlap.engine.schedule import Schedule

Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
Switch = Literal["auto", "on", "off"]
Compile = Literal["auto", "on", "fullgraph", "regions", "max-autotune", "off"]
LOW: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Checkpoints:
    """What is saved in `folder`: last.pt always, best.pt by the monitored score, epoch-0004.pt every `every` epochs.

    With best=3 there is also best-0004.pt for each of the three best epochs.
    With `steps`, last.pt is also written in the middle of an epoch, every so many optimizer steps. A folder that holds
    the checkpoints of another run is refused unless `replace` is set.
    """

    folder: Path | str
    best: bool | int = True
    every: int | None = None
    steps: int | None = None
    replace: bool = False

    def __post_init__(self) -> None:
        is_path = isinstance(self.folder, str | os.PathLike)
        _require(is_path, f"{_shown(self, 'folder')}; use a path, such as 'runs/first'")
        _switches(self, "replace")
        is_count = isinstance(self.best, int) and self.best >= 0  # a bool is one too
        _require(is_count, f"{_shown(self, 'best')}; use True, False or how many of the best epochs to keep")
        _whole(self, 1, "every", "steps", optional=True)


@dataclass(frozen=True)
class Phase:
    """A stretch of epochs in which the parameters whose names start with one of `frozen` are not trained.

    The running statistics of norms among them still follow the batches, as with requires_grad=False in torch: right for
    a backbone with fresh weights. `frozen_statistics` freezes them too, and such norms normalise by them, as in
    evaluation: right for a pretrained backbone, and what Keras does.
    """

    epochs: int
    frozen: tuple[str, ...] = ()
    learning_rate: float | None = None  # of all groups; None: the optimizer's own
    schedule: Schedule | None = None  # over this phase; None: the recipe's
    fresh_optimizer: bool = False  # forgets its moments when the phase begins
    frozen_statistics: bool = False  # of norms whose names start with one of `frozen`

    def __post_init__(self) -> None:
        _whole(self, 1, "epochs")
        _names(self, "frozen")
        _number(self, "learning_rate", "0 or more", lambda rate: 0 <= rate < math.inf, optional=True)
        _schedule(self)
        _switches(self, "fresh_optimizer", "frozen_statistics")


@dataclass(frozen=True)
class PrecisionGate:
    """What a lower precision must pass before precision="auto" chooses it: copies are trained in it and in float32, for
    so many steps and from so many seeds. With 95 % confidence its loss must not be higher by more than `margin`, a
    share of the loss in float32.
    """

    steps: int = 200
    seeds: int = 3
    margin: float = 0.01

    def __post_init__(self) -> None:
        _whole(self, 4, "steps")
        _whole(self, 2, "seeds")
        _require(self.seeds <= 10, f"{_shown(self, 'seeds')}; use at most 10")
        _number(self, "margin", "of 0 or more", lambda margin: 0 <= margin < math.inf)


@dataclass(frozen=True)
class Recipe:
    batch_size: int
    accumulate: int = 1  # batches per optimizer step
    drop_last: bool = False
    shuffle: bool = True
    steps_per_epoch: int | None = None  # optimizer steps between two evaluations; None: one pass over the rows
    evaluation_batch: int | None = None  # None: four times batch_size
    precision: Precision = "tf32"  # "auto": the fastest, measured on copies before the training begins
    precision_gate: PrecisionGate | None = None  # with "auto": what a lower one must pass
    full_precision: tuple[str, ...] = ()  # names of modules that stay in float32 where precision is lower
    channels_last: bool = False
    compile: Compile = "auto"  # see docs/engine.md, "How the step is run"
    graph: Switch = "auto"
    onednn: Switch = "auto"  # on a CPU: small products can be many times faster without it; rounds differently
    threads: int | None = None  # on a CPU; None: all or one, by measurement
    activation_checkpointing: bool | Literal["auto"] | tuple[str, ...] = False  # names of blocks; True: the children
    clip: float | None = None  # upper limit of the norm of all gradients together
    clip_value: float | None = None  # upper limit of each element of a gradient, up and down
    schedule: Schedule | None = None
    warmup: int = 0  # optimizer steps in which the learning rate rises from zero
    loss_weights: Mapping[str, float] = field(default_factory=dict)  # of a loss that is a dict; 1 if not named
    ema: float | None = None  # decay of averaged weights, which evaluation then uses
    nan_guard: bool = True
    monitor: str | None = None  # a score's name; None: the first metric, else the loss
    higher_is_better: bool | None = None  # None: as the metric says; a loss is minimised
    patience: int | None = None  # epochs without a better score before it stops
    min_delta: float = 0.0
    seed: int = 0
    log_every: int = 200  # optimizer steps between looks at the losses; the device is not waited for
    checkpoints: Checkpoints | None = None
    phases: tuple[Phase, ...] = ()

    def __post_init__(self) -> None:
        _whole(self, 1, "batch_size", "accumulate", "log_every")
        _whole(self, 1, "evaluation_batch", "threads", "patience", "steps_per_epoch", optional=True)
        _whole(self, 0, "warmup")
        _whole(self, None, "seed")
        _require(-(2**63) <= self.seed < 2**64, f"{_shown(self, 'seed')}; use a whole number from -2**63 to 2**64 - 1")
        _switches(self, "drop_last", "shuffle", "channels_last", "nan_guard")
        _number(self, "clip", "above 0", lambda norm: norm > 0, optional=True)
        _number(self, "clip_value", "above 0", lambda value: value > 0, optional=True)
        _require(self.clip is None or self.clip_value is None, "clip and clip_value were both given; use one of them")
        _number(self, "ema", "between 0 and 1", lambda decay: 0 < decay < 1, optional=True)
        _number(self, "min_delta", "that is finite", math.isfinite)
        _schedule(self)
        for name, kinds in (("precision", Precision), ("compile", Compile), ("graph", Switch), ("onednn", Switch)):
            value = getattr(self, name)
            _require(value in get_args(kinds), f"{name}={value!r}; use one of {', '.join(get_args(kinds))}")
        _names(self, "full_precision")
        gate = self.precision_gate
        _require(gate is None or isinstance(gate, PrecisionGate), f"precision_gate={gate!r}; use PrecisionGate(…)")
        _require(gate is None or self.precision == "auto", 'precision_gate needs precision="auto"')
        if not isinstance(self.activation_checkpointing, bool) and self.activation_checkpointing != "auto":
            _names(self, "activation_checkpointing", 'True, False, "auto" or ')
        self._check_scores_and_parts()

    def _check_scores_and_parts(self) -> None:
        _require(self.monitor is None or isinstance(self.monitor, str), f"monitor={self.monitor!r}; use a score's name")
        better = self.higher_is_better
        _require(better is None or isinstance(better, bool), f"higher_is_better={better!r}; use True, False or None")
        checkpoints = self.checkpoints
        is_known = checkpoints is None or isinstance(checkpoints, Checkpoints)
        _require(is_known, f"checkpoints={checkpoints!r}; use Checkpoints(folder) or None")
        is_good = isinstance(self.phases, list | tuple) and all(isinstance(phase, Phase) for phase in self.phases)
        _require(is_good, f"phases={self.phases!r}; use a tuple of phases, such as (Phase(2), Phase(8))")
        object.__setattr__(self, "phases", tuple(self.phases))
        object.__setattr__(self, "loss_weights", _weights(self.loss_weights))


def _weights(given: Any) -> dict[str, float]:
    use = "use a dict of numbers by name, such as {'box': 0.5}"
    _require(isinstance(given, Mapping), f"loss_weights={given!r}; {use}")
    for name, weight in given.items():
        is_good = isinstance(name, str) and _is_number(weight) and math.isfinite(weight)
        _require(is_good, f"loss_weights has {name!r}: {weight!r}; {use}")
    return {name: float(weight) for name, weight in given.items()}


def _whole(of: object, least: int | None, *names: str, optional: bool = False) -> None:
    for name in names:
        value = getattr(of, name)
        if optional and value is None:
            continue
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        words = "a whole number" + ("" if least is None else f", {least} or more") + (", or None" if optional else "")
        _require(is_whole and (least is None or value >= least), f"{_shown(of, name)}; use {words}")
        object.__setattr__(of, name, int(value))


def _number(of: object, name: str, words: str, fits: Callable[[float], bool], optional: bool = False) -> None:
    value = getattr(of, name)
    if optional and value is None:
        return
    or_none = ", or None" if optional else ""
    _require(_is_number(value) and fits(value), f"{_shown(of, name)}; use a number {words}{or_none}")
    object.__setattr__(of, name, float(value))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _switches(of: object, *names: str) -> None:
    for name in names:
        value = getattr(of, name)
        _require(isinstance(value, bool), f"{_shown(of, name)}; use True or False")


def _names(of: object, name: str, others: str = "") -> None:
    value = getattr(of, name)
    _require(not isinstance(value, str), f"{_shown(of, name)}; use {others}a tuple of names: ({value!r},)")
    fits = isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value)
    _require(fits, f"{_shown(of, name)}; use {others}a tuple of names")
    object.__setattr__(of, name, tuple(value))


def _schedule(of: Recipe | Phase) -> None:
    fits = of.schedule is None or isinstance(of.schedule, Schedule)
    _require(fits, f"{_shown(of, 'schedule')}; use Cosine(), Linear(), Steps(), FromTorch(make=…) or None")


def _shown(of: object, name: str) -> str:
    shown = f"{name}={getattr(of, name)!r}"
    return shown if isinstance(of, Recipe) else f"{type(of).__name__}({shown})"


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise BadRecipe(why)
