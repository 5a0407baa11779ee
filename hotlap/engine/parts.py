"""What a run is made of, before it begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from hotlap.engine.callbacks import Callbacks
from hotlap.engine.evaluation import Evaluation
from hotlap.engine.geometry import Geometry
from hotlap.engine.interrupts import Interrupts
from hotlap.engine.log import Log
from hotlap.engine.metrics import Metric
from hotlap.engine.processes import Processes
from hotlap.engine.recipe import Phase, Recipe
from hotlap.engine.recorder import Recorder
from hotlap.engine.seam import AnySource
from hotlap.engine.update import Forward


@dataclass(frozen=True)
class Parts:
    """What a run is made of; nothing in it changes."""

    model: nn.Module
    optimizer: Optimizer
    recipe: Recipe
    forward: Forward
    train: AnySource
    valid: AnySource | None
    geometry: Geometry
    phases: tuple[Phase, ...]
    device: torch.device
    recorder: Recorder | None
    scaler: torch.amp.GradScaler | None
    evaluation: Evaluation
    beside: nn.Module | None  # a loss or step that has weights or buffers of its own
    own_evaluation: Callable[[nn.Module], Mapping[str, float]] | None
    train_metrics: Mapping[str, Metric]
    callbacks: Callbacks
    log: Log
    interrupts: Interrupts
    say: Callable[[str], None]
    base_rates: tuple[float, ...]
    processes: Processes | None = None
