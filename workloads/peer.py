"""What the Lightning and the Accelerate arm share: their arguments, the five workloads, what they print.

Both train what naive.py trains: the same samples, model, first weights, loss, optimizer, batch size, number of
updates, clipping and phases, and are scored by naive.evaluate_loader after every epoch. They read the same
Datasets through DataLoader workers, and take what their documentation recommends for speed.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

WORKLOADS = Path(__file__).resolve().parent
NOT_INSTALLED = 3  # exit code
PREFETCH_FACTOR = 2  # batches per worker; more costs shared memory (a batch of banknotes is 79 MB) and no longer helps


@dataclass(frozen=True)
class Speed:
    """The settings that decide the speed of a framework: `workers` None means chosen from the cores."""

    precision: str  # "32" (TF32 on CUDA) or "bf16"
    compile: bool = False
    workers: int | None = None


# The fastest that benchmarks/training/peer_settings.py found, per device and workload; see benchmarks/README.md.
FASTEST = {
    "cuda": {
        "battery_lstm": Speed("32"),
        "battery_fnn": Speed("bf16", compile=True),
        "bloom": Speed("bf16"),
        "banknotes": Speed("32", compile=True),
        "leak": Speed("bf16"),
    },
    "cpu": {
        "battery_lstm": Speed("32", workers=0),
        "battery_fnn": Speed("32", workers=0),
        "bloom": Speed("32", workers=0),
        "banknotes": Speed("32"),
        "leak": Speed("32"),
    },
}


@dataclass(frozen=True)
class Phase:
    """A stretch of epochs under one optimizer; `own` is the phase of naive.py, where it has phases."""

    epochs: range
    own: Any = None


@dataclass(frozen=True)
class Recipe:
    """What is specific to one workload."""

    inputs_and_target: Callable[[Any], tuple[Tensor, Tensor]]
    drop_last: bool = False
    collate: str | None = None  # a function of its naive.py
    convolutional: bool = False
    phased: bool = False


def first_two(batch: Any) -> tuple[Tensor, Tensor]:
    return batch[0], batch[1]


def mel_and_label(batch: Any) -> tuple[Tensor, Tensor]:
    return batch[0].unsqueeze(1).contiguous(memory_format=torch.channels_last), batch[1]


def pictures_and_notes(batch: Any) -> tuple[Tensor, Tensor]:
    return batch[0].contiguous(memory_format=torch.channels_last), batch[1]


RECIPES = {
    "battery_lstm": Recipe(first_two),
    "battery_fnn": Recipe(first_two),
    "bloom": Recipe(first_two),
    "banknotes": Recipe(pictures_and_notes, collate="collate_ragged", convolutional=True, phased=True),
    "leak": Recipe(mel_and_label, drop_last=True, convolutional=True),
}


class Task:
    """One workload, ready to be trained by a framework."""

    def __init__(self, workload: str, settings: Any, folder: Path, device: torch.device, speed: Speed) -> None:
        self.naive = load_naive(workload)
        self.recipe = RECIPES[workload]
        self.settings, self.device, self.speed = settings, device, speed
        self.clip: float | None = getattr(settings, "clip", None)
        self.train_set, self.valid_set = self.naive.build_datasets(folder, settings)
        self.loader = self._loader(
            self.train_set,
            settings.batch_size,
            shuffle=True,
            generator=torch.Generator().manual_seed(settings.seed),
            drop_last=self.recipe.drop_last,
        )
        self.valid_loader = self._loader(self.valid_set, getattr(settings, "valid_batch_size", settings.batch_size))

    def _loader(self, dataset: Dataset[Any], batch_size: int, **options: Any) -> DataLoader[Any]:
        workers = self.speed.workers or 0
        collate = self.recipe.collate
        return DataLoader(
            dataset,
            batch_size,
            collate_fn=getattr(self.naive, collate) if collate else None,
            num_workers=workers,
            pin_memory=self.device.type == "cuda",
            persistent_workers=workers > 0,
            prefetch_factor=PREFETCH_FACTOR if workers else None,
            **options,
        )

    def samples(self) -> int:
        """Return how many samples an epoch trains."""
        batches = len(self.loader)
        return batches * self.settings.batch_size if self.recipe.drop_last else len(self.train_set)

    def model(self) -> nn.Module:
        """Return the model with the very weights naive.py starts from."""
        torch.manual_seed(self.settings.seed)
        model: nn.Module = self.naive.build_model(self.settings)
        layout = torch.channels_last if self.recipe.convolutional else torch.preserve_format
        return model.to(self.device, memory_format=layout)

    def loss(self, model: Callable[[Tensor], Any], batch: Any) -> Tensor:
        inputs, target = self.recipe.inputs_and_target(batch)
        loss: Tensor = self.naive.loss_function(model(inputs), target)
        return loss

    def phases(self) -> list[Phase]:
        if not self.recipe.phased:
            return [Phase(range(self.settings.epochs))]
        return [Phase(own.epochs, own) for own in self.naive.phases(self.settings)]

    def optimizer(self, model: nn.Module, phase: Phase) -> torch.optim.Optimizer:
        """Return naive's optimizer, fused; for a phase, freeze or free the backbone first."""
        if phase.own is not None:
            self.naive.freeze_backbone(model, phase.own.backbone_frozen)
        phase_argument = () if phase.own is None else (phase.own,)
        optimizer: torch.optim.Optimizer = self.naive.build_optimizer(model, self.settings, *phase_argument)
        # Not by the constructor: Lightning refuses to clip beside a fused=True given there, even without a scaler.
        for group in optimizer.param_groups:
            group.update(fused=True, foreach=False)
        return optimizer

    def schedule(self, optimizer: torch.optim.Optimizer, phase: Phase) -> torch.optim.lr_scheduler.LambdaLR | None:
        """Return naive's schedule of learning rates, or None if they do not change."""
        if phase.own is None:
            return None
        own, rate_at = phase.own, self.naive.learning_rate_at
        return torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda epoch: rate_at(own, own.epochs.start + epoch) / own.learning_rate
        )

    def score(self, model: nn.Module) -> float:
        value = float(self.naive.evaluate_loader(model, self.valid_loader, self.device, self.settings))
        model.train()  # the battery and Bloom scripts leave it in evaluation mode
        return value

    def finish_device(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class EpochClock:
    """Times the training part of an epoch, from requesting its first batch until the device is done."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.started = 0.0

    def start(self) -> None:
        self.task.finish_device()
        self.started = time.perf_counter()

    def seconds(self) -> float:
        self.task.finish_device()
        return time.perf_counter() - self.started


def report_epoch(task: Task, epoch: int, loss: float, value: float, seconds: float) -> None:
    """`epoch` counts from 0 here and from 1 in print."""
    print(task.naive.epoch_line(epoch + 1, loss, value, seconds), flush=True)


def run(framework: str, train: Callable[[Task, nn.Module], float], arguments: list[str] | None = None) -> int:
    """Parse, train, print what every arm prints, and keep the weights in --out."""
    parser = build_parser(framework)
    chosen = parser.parse_args(arguments)
    if chosen.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs an NVIDIA GPU that torch can use; use --device cpu")
    naive = load_naive(chosen.workload)
    settings = settings_from(naive, chosen)
    device, speed = torch.device(chosen.device), speed_from(chosen)
    use_fast_arithmetic(device, RECIPES[chosen.workload])
    folder = chosen.data or naive.data.ensure(settings.size, settings.seed)
    with tempfile.TemporaryDirectory() as temporary:
        out = chosen.out or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        task = Task(chosen.workload, settings, folder, device, speed)
        print(settings_line(speed), flush=True)
        print(naive.samples_line(task.samples(), len(task.valid_set)), flush=True)
        model = task.model()
        value = train(task, model)
        torch.save(model.state_dict(), out / "model.pt")
    print(naive.final_line(value, settings), flush=True)
    return 0


def leave(code: int) -> NoReturn:
    """End at once after flushing: torch would wait up to 5 s for each persistent worker, one after the other."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def build_parser(framework: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=f"train a workload with {framework}, as fast as its documentation says"
    )
    parser.add_argument("workload", choices=sorted(RECIPES))
    parser.add_argument("--size", choices=("tiny", "small", "report"), default="small")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, help="folder made by data.py (default: made when missing)")
    parser.add_argument("--out", type=Path, help="folder for the weights (default: a temporary one)")
    parser.add_argument("--precision", choices=("32", "bf16"), help="default: the fastest measured")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: the fastest measured")
    parser.add_argument("--workers", type=int, help="default: the fastest measured")
    return parser


def settings_from(naive: ModuleType, chosen: argparse.Namespace) -> Any:
    epochs = {} if chosen.epochs is None else {"epochs": chosen.epochs}
    return dataclasses.replace(naive.defaults(chosen.size), seed=chosen.seed, **epochs)


def speed_from(chosen: argparse.Namespace) -> Speed:
    fastest = FASTEST[chosen.device][chosen.workload]
    named = {name: getattr(chosen, name) for name in ("precision", "compile", "workers")}
    speed = dataclasses.replace(fastest, **{name: value for name, value in named.items() if value is not None})
    return speed if speed.workers is not None else dataclasses.replace(speed, workers=workers_from_cores())


def workers_from_cores() -> int:
    """As many as there are cores, less one for this process and one for the thread that pins memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 2)


def settings_line(speed: Speed) -> str:
    precision = {"32": "32-true", "bf16": "bf16-mixed"}[speed.precision]
    return f"settings precision={precision} compile={'yes' if speed.compile else 'no'} workers={speed.workers}"


def use_fast_arithmetic(device: torch.device, recipe: Recipe) -> None:
    """TF32 for float32 matrix products, and measured convolutions; the CPU keeps full float32."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = recipe.convolutional


def load_naive(workload: str) -> ModuleType:
    """Import naive.py of one workload; it imports its neighbours by plain names, so one process serves one workload."""
    folder = str(WORKLOADS / workload)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("naive")


def framework(name: str) -> ModuleType:
    """Import the package of that name, or end the program with a line that says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        print(f"this arm needs {name}; type: pip install 'hotlap[peers]'", file=sys.stderr)
        raise SystemExit(NOT_INSTALLED) from None
