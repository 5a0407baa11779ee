"""Leak detection as the leak report found it, before its optimisations.

python naive.py --size small [--seed 0] [--out DIR] [--resume]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import data
import evaluation
import h5py
import torch
from model import LeakCNN
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, RandomSampler

METRIC = "segment_f1"
HIGHER_IS_BETTER = True
TARGETS = {"tiny": 0.60, "small": 0.80, "report": 0.90}
LEAK = 3
LEAK_WEIGHT = 0.5


@dataclass(frozen=True)
class Settings:
    """The settings of a run; the values are those of the report where it names them."""

    size: str
    epochs: int
    batch_size: int
    valid_batch_size: int = 2048
    learning_rate: float = 1e-3
    workers: int = 8
    prefetch_factor: int = 4
    seed: int = 0
    mixed_precision: bool = True  # float16, on CUDA only
    compile: bool = True  # on CUDA only


def defaults(size: str) -> Settings:
    return {
        "tiny": Settings("tiny", epochs=8, batch_size=64, workers=0),
        "small": Settings("small", epochs=8, batch_size=256, workers=2),
        "report": Settings("report", epochs=15, batch_size=5632),
    }[size]


@dataclass(frozen=True)
class Seconds:
    """Where the time of one epoch went; only the first is training."""

    train: float
    evaluation: float
    checkpoint: float


class LeakSegments(Dataset[tuple[Tensor, int]]):
    """Every short segment of every file, read from the HDF5 file one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: h5py.File | None = None  # opened in each worker: an open HDF5 file survives no fork
        with h5py.File(path, "r") as file:
            self.num_files, self.num_long, self.num_short = file["mel"].shape[:3]
            self.file_label = file["file_label"][:]
            self.segment_label = file["segment_label"][:]

    def __len__(self) -> int:
        return int(self.num_files * self.num_long * self.num_short)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rest, short = divmod(index, self.num_short)
        file_index, long = divmod(rest, self.num_long)
        mel = self.mel()[file_index, long, short]
        return torch.from_numpy(mel), int(self.segment_label[file_index, long, short])

    def mel(self) -> h5py.Dataset:
        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return self.file["mel"]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": None}


def build_datasets(folder: Path, settings: Settings) -> tuple[LeakSegments, LeakSegments]:
    return LeakSegments(folder / "train.h5"), LeakSegments(folder / "valid.h5")


def build_model(settings: Settings) -> LeakCNN:
    torch.manual_seed(settings.seed)
    return LeakCNN()


def build_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)


def loss_function(model_output: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    class_logits, leak_logits = model_output
    is_leak = (labels == LEAK).to(leak_logits.dtype)
    leak_loss = functional.binary_cross_entropy_with_logits(leak_logits, is_leak)
    return functional.cross_entropy(class_logits, labels) + LEAK_WEIGHT * leak_loss


def evaluate(model: nn.Module, valid_dataset: Dataset[Any], device: torch.device, settings: Settings) -> float:
    """F1 of the leak head over all validation segments."""
    loader = DataLoader(valid_dataset, settings.valid_batch_size)
    return evaluate_loader(model, loader, device, settings)


def evaluate_loader(model: nn.Module, loader: DataLoader[Any], device: torch.device, settings: Settings) -> float:
    """Evaluate for an arm that loads the validation part its own way."""
    return evaluation.evaluate_segments(model, loader, device, amp_enabled(settings, device)).segment_f1


def amp_enabled(settings: Settings, device: torch.device) -> bool:
    return settings.mixed_precision and device.type == "cuda"


def shuffle_of_epoch(settings: Settings, epoch: int) -> int:
    """Return the seed of one epoch's order: a resumed run sees the order it would have seen."""
    return settings.seed * 100_003 + epoch


def build_loaders(
    train: LeakSegments, valid: LeakSegments, settings: Settings
) -> tuple[DataLoader[Any], DataLoader[Any], torch.Generator]:
    order = torch.Generator()
    common: dict[str, Any] = {"num_workers": settings.workers, "pin_memory": torch.cuda.is_available()}
    if settings.workers:
        common |= {"prefetch_factor": settings.prefetch_factor, "persistent_workers": True}
    sampler = RandomSampler(train, generator=order)
    train_loader = DataLoader(train, settings.batch_size, sampler=sampler, drop_last=True, **common)
    return train_loader, DataLoader(valid, settings.valid_batch_size, **common), order


def train_one_epoch(
    model: nn.Module,
    loader: DataLoader[Any],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    device: torch.device,
    amp: bool,
) -> float:
    model.train()
    total_loss, seen, correct = 0.0, 0, 0
    for mel_batch, labels in loader:
        mel_batch = evaluation.prepare_mel_batch(mel_batch, device)
        labels = labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        with torch.amp.autocast(device.type, dtype=torch.float16, enabled=amp):
            outputs = model(mel_batch)
            loss = loss_function(outputs, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total_loss += loss.item() * labels.size(0)
        correct += int((outputs[0].argmax(dim=1) == labels).sum().item())
        seen += labels.size(0)
    return total_loss / seen


def save_checkpoint(path: Path, epoch: int, model: nn.Module, optimizer: Any, scaler: Any) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    torch.save({"epoch": epoch, **state}, path)


def load_checkpoint(path: Path, model: nn.Module, optimizer: Any, scaler: Any) -> int:
    """Restore the run and return the first epoch still to train."""
    if not path.exists():
        raise SystemExit(f"nothing to resume: {path} does not exist; run once without --resume first")
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if state["scaler"]:  # empty when the run before had no mixed precision
        scaler.load_state_dict(state["scaler"])
    return int(state["epoch"]) + 1


def report_epoch(epoch: int, loss: float, scores: evaluation.Scores, seconds: Seconds) -> None:
    print(epoch_line(epoch, loss, scores.segment_f1, seconds.train), flush=True)
    print(
        f"    accuracy {scores.accuracy:.4f}  file_f1 {scores.file_f1:.4f}  "
        f"eval_seconds {seconds.evaluation:.4f}  checkpoint_seconds {seconds.checkpoint:.4f}",
        file=sys.stderr,
        flush=True,
    )


def samples_line(train: int, valid: int) -> str:
    """Return a line with how many samples an epoch trains on and how many score it."""
    return f"train {train} samples  valid {valid} samples"


def epoch_line(epoch: int, loss: float, metric: float, seconds: float) -> str:
    return f"epoch {epoch}  loss {loss:.5f}  {METRIC} {metric:.4f}  seconds {seconds:.6g}"


def final_line(metric: float, settings: Settings) -> str:
    target = TARGETS[settings.size]
    outcome = "reached" if metric >= target else "missed"
    return f"final {METRIC} {metric:.4f} target {target:.4f} {outcome}"


def train(settings: Settings, folder: Path, out: Path, device: torch.device, resume: bool) -> float:
    train_set, valid_set = build_datasets(folder, settings)
    train_loader, valid_loader, order = build_loaders(train_set, valid_set, settings)
    model = build_model(settings).to(device, memory_format=torch.channels_last)
    optimizer = build_optimizer(model, settings)
    amp = amp_enabled(settings, device)
    scaler = torch.amp.GradScaler(device.type, enabled=amp)
    checkpoint = out / "last.pt"
    first = load_checkpoint(checkpoint, model, optimizer, scaler) if resume else 0
    compiled = settings.compile and device.type == "cuda"
    step_model = torch.compile(model, mode="reduce-overhead") if compiled else model
    iter(valid_loader)  # starts its workers now: a process must not fork once CUDA graphs are captured
    print(samples_line(len(train_loader) * settings.batch_size, len(valid_set)), flush=True)
    for epoch in range(first, settings.epochs):
        order.manual_seed(shuffle_of_epoch(settings, epoch))
        started = time.perf_counter()
        loss = train_one_epoch(step_model, train_loader, optimizer, scaler, device, amp)
        trained = time.perf_counter()
        scores = evaluation.evaluate_all(model, valid_loader, valid_set, device, amp)
        evaluated = time.perf_counter()
        save_checkpoint(checkpoint, epoch, model, optimizer, scaler)
        seconds = Seconds(trained - started, evaluated - trained, time.perf_counter() - evaluated)
        report_epoch(epoch + 1, loss, scores, seconds)
    return evaluate(model, valid_set, device, settings)


def build_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--size", choices=data.SIZES, default="small")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, help="folder made by data.py (default: made when missing)")
    parser.add_argument("--out", type=Path, help="checkpoints go here (default: a temporary folder)")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in --out")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="torch.compile on CUDA")
    parser.add_argument("--mixed-precision", action=argparse.BooleanOptionalAction, help="float16 on CUDA")
    return parser


def settings_from(arguments: argparse.Namespace) -> Settings:
    base = defaults(arguments.size)
    given = {name: getattr(arguments, name, None) for name in Settings.__dataclass_fields__}
    return dataclasses.replace(base, **{name: value for name, value in given.items() if value is not None})


@contextlib.contextmanager
def run_folders(arguments: argparse.Namespace, settings: Settings) -> Iterator[tuple[Path, Path]]:
    """Yield the data, made if missing, and the output folder, removed at the end if none was named."""
    if arguments.resume and arguments.out is None:
        raise SystemExit("--resume needs the folder of the run to continue: add --out DIR")
    folder = arguments.data or data.ensure(settings.size, settings.seed)
    with tempfile.TemporaryDirectory() as temporary:
        out = arguments.out or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        yield folder, out


def main(argv: list[str] | None = None) -> int:
    arguments = build_parser("leak detection, as the report found it").parse_args(argv)
    settings = settings_from(arguments)
    device = torch.device(arguments.device)
    with run_folders(arguments, settings) as (folder, out):
        value = train(settings, folder, out, device, arguments.resume)
    print(final_line(value, settings), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
