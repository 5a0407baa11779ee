"""Banknote detection as the banknote report found it, before its optimisations.

python naive.py --size small [--seed 0] [--out DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import data
import metrics
import numpy as np
import torch
from loss import loss_terms
from model import CLASS_COUNT, NoteDetector
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

METRIC = "map50"
HIGHER_IS_BETTER = True
TARGETS = {"tiny": 0.15, "small": 0.50, "report": 0.60}


@dataclass(frozen=True)
class Settings:
    """The settings of a run; batch size and workers are those of the report."""

    size: str
    epochs: int
    frozen_epochs: int  # of these, the first train the head alone
    width: float = 0.5
    depth: float = 0.33
    batch_size: int = 16
    learning_rate: float = 2e-3  # while the backbone is frozen
    full_learning_rate: float = 1e-3  # once everything trains
    weight_decay: float = 5e-4
    workers: int = 4
    seed: int = 0


@dataclass(frozen=True)
class Phase:
    """A stretch of epochs with its own trainable part and learning rate."""

    epochs: range
    backbone_frozen: bool
    learning_rate: float


@dataclass(frozen=True)
class Seconds:
    """Where the time of one epoch went; only the first is training."""

    train: float
    evaluation: float
    checkpoint: float


def defaults(size: str) -> Settings:
    """Tiny and small shrink the network, and make up for few pictures with a higher rate."""
    shrunk = {"width": 0.125, "depth": 0.1, "learning_rate": 5e-3, "full_learning_rate": 3e-3}
    return {
        "tiny": Settings("tiny", epochs=7, frozen_epochs=1, batch_size=8, workers=0, **shrunk),
        "small": Settings("small", epochs=16, frozen_epochs=1, workers=2, **shrunk),
        "report": Settings("report", epochs=12, frozen_epochs=3),
    }[size]


class NoteImages(Dataset[tuple[Tensor, Tensor]]):
    """Pictures and labels, read from disk and converted one at a time."""

    def __init__(self, folder: Path) -> None:
        self.images = sorted((folder / "images").glob("*.npy"))
        self.labels = folder / "labels"

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = np.load(self.images[index])
        image = image.transpose(2, 0, 1).astype(np.float32) / 255.0
        return torch.from_numpy(np.ascontiguousarray(image)), self.notes(index)

    def notes(self, index: int) -> Tensor:
        """`[notes, 5]`: class, cx, cy, w, h."""
        lines = (self.labels / f"{self.images[index].stem}.txt").read_text().splitlines()
        rows = [[float(value) for value in line.split()] for line in lines if line.strip()]
        return torch.tensor(rows, dtype=torch.float32).reshape(-1, 5)


def collate_ragged(batch: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Stacked pictures, and the notes of all of them as rows of (image, class, cx, cy, w, h)."""
    images, notes = [], []
    for number, (image, labels) in enumerate(batch):
        images.append(image)
        for label in labels:
            notes.append(torch.cat((torch.tensor([float(number)]), label)))
    targets = torch.stack(notes) if notes else torch.zeros(0, 6)
    return torch.stack(images), targets


def build_datasets(folder: Path, settings: Settings) -> tuple[NoteImages, NoteImages]:
    return NoteImages(folder / "train"), NoteImages(folder / "valid")


def build_model(settings: Settings) -> NoteDetector:
    torch.manual_seed(settings.seed)
    return NoteDetector(settings.width, settings.depth)


def phases(settings: Settings) -> list[Phase]:
    """The head alone on the frozen backbone, then everything at a lower rate."""
    frozen = min(settings.frozen_epochs, max(settings.epochs - 1, 0))
    both = [
        Phase(range(frozen), True, settings.learning_rate),
        Phase(range(frozen, settings.epochs), False, settings.full_learning_rate),
    ]
    return [phase for phase in both if phase.epochs]


def freeze_backbone(model: NoteDetector, frozen: bool) -> None:
    for parameter in model.backbone.parameters():
        parameter.requires_grad_(not frozen)


def build_optimizer(model: nn.Module, settings: Settings, phase: Phase | None = None) -> torch.optim.Optimizer:
    """Build the optimizer of one phase; by default that of the last one, in which everything trains."""
    learning_rate = phase.learning_rate if phase else settings.full_learning_rate
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trainable, lr=learning_rate, weight_decay=settings.weight_decay)


def learning_rate_at(phase: Phase, epoch: int) -> float:
    """Return the learning rate, which falls in equal steps from the rate of the phase to a twentieth of it."""
    done = (epoch - phase.epochs.start) / max(len(phase.epochs) - 1, 1)
    return phase.learning_rate * (1 - 0.95 * done)


def loss_function(model_output: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    box, objectness, classes = loss_terms(model_output, targets)
    return box + objectness + classes


def build_loaders(
    train: Dataset[Any], valid: Dataset[Any], settings: Settings
) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """A fixed number of workers, started anew every epoch; nothing pinned, nothing prefetched beyond the default."""
    order = torch.Generator().manual_seed(settings.seed)
    common: dict[str, Any] = {"collate_fn": collate_ragged, "num_workers": settings.workers}
    train_loader = DataLoader(train, settings.batch_size, shuffle=True, generator=order, **common)
    return train_loader, DataLoader(valid, settings.batch_size, **common)


def process_predictions(outputs: tuple[Tensor, ...]) -> dict[str, float]:
    """The report's prediction processor: decodes every layer of every training batch for its progress display."""
    confidence = {}
    for number, output in enumerate(outputs, start=1):
        decoded = output.detach().float().sigmoid()
        confidence[f"layer_{number}"] = decoded[..., 4].max().item()
    return confidence


class ProgressLog:
    """Twenty updates per epoch, each written and flushed on the training thread."""

    def __init__(self, path: Path, batches: int) -> None:
        self.path = path
        self.every = max(1, batches // 20)

    def update(self, epoch: int, batch: int, values: dict[str, float]) -> None:
        if batch % self.every == 0:
            with open(self.path, "a") as file:
                file.write(json.dumps({"epoch": epoch, "batch": batch, **values}) + "\n")


def train_one_epoch(
    model: NoteDetector,
    loader: DataLoader[Any],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    progress: ProgressLog,
    epoch: int,
) -> float:
    model.train()
    total = 0.0
    for number, (images, targets) in enumerate(loader):
        images, targets = images.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = model(images)
        confidence = process_predictions(outputs)
        box, objectness, classes = loss_terms(outputs, targets)
        loss = box + objectness + classes
        loss.backward()
        optimizer.step()
        parts = {"box": box.item(), "objectness": objectness.item(), "classes": classes.item()}
        total += loss.item()
        progress.update(epoch, number, {**parts, **confidence})
    return total / len(loader)


def evaluate(model: nn.Module, valid_dataset: Dataset[Any], device: torch.device, settings: Settings) -> float:
    """Mean average precision at IoU 0.5 over the whole validation part."""
    loader = DataLoader(valid_dataset, settings.batch_size, collate_fn=collate_ragged)
    return evaluate_loader(model, loader, device, settings)


@torch.no_grad()
def evaluate_loader(model: nn.Module, loader: DataLoader[Any], device: torch.device, settings: Settings) -> float:
    """Evaluate for an arm that loads the validation part its own way."""
    model.eval()
    found: list[metrics.Detections] = []
    truth: list[np.ndarray] = []
    for images, targets in loader:
        outputs = model(images.to(device))
        boxes, confidences, classes = metrics.strongest(*metrics.decode(outputs))
        for number in range(len(images)):
            found.append(one_by_one(boxes[number], confidences[number], classes[number]))
            truth.append(corners(targets[targets[:, 0] == number, 1:]).numpy())
    model.train()
    return metrics.mean_average_precision(found, truth, CLASS_COUNT)


def one_by_one(boxes: Tensor, confidences: Tensor, classes: Tensor) -> metrics.Detections:
    """Suppress duplicates in one picture greedily, the strongest candidate first."""
    repeats = metrics.doubles(boxes, classes).cpu()
    stays = (confidences > metrics.LOWEST_CONFIDENCE).cpu()
    for rank in range(len(stays)):
        if stays[rank]:
            stays &= ~repeats[rank]
    kept = stays.numpy()
    return metrics.Detections(boxes.cpu().numpy()[kept], confidences.cpu().numpy()[kept], classes.cpu().numpy()[kept])


def corners(labels: Tensor) -> Tensor:
    """`[notes, 5]` of class, x1, y1, x2, y2 from class, cx, cy, w, h."""
    centre, size = labels[:, 1:3], labels[:, 3:5]
    return torch.cat((labels[:, :1], centre - size / 2, centre + size / 2), dim=1)


def save_checkpoint(out: Path, epoch: int, model: nn.Module, optimizer: Any, value: float, best: float) -> None:
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict(), METRIC: value}
    torch.save(state, out / "last.pt")
    if value >= best:
        torch.save(state, out / "best.pt")


def report_epoch(epoch: int, loss: float, value: float, seconds: Seconds) -> None:
    print(epoch_line(epoch, loss, value, seconds.train), flush=True)
    details = f"eval_seconds {seconds.evaluation:.4f}  checkpoint_seconds {seconds.checkpoint:.4f}"
    print(f"    {details}", file=sys.stderr, flush=True)


def samples_line(train: int, valid: int) -> str:
    """Return a line with how many samples an epoch trains on and how many score it."""
    return f"train {train} samples  valid {valid} samples"


def epoch_line(epoch: int, loss: float, metric: float, seconds: float) -> str:
    return f"epoch {epoch}  loss {loss:.5f}  {METRIC} {metric:.4f}  seconds {seconds:.6g}"


def final_line(metric: float, settings: Settings) -> str:
    target = TARGETS[settings.size]
    outcome = "reached" if metric >= target else "missed"
    return f"final {METRIC} {metric:.4f} target {target:.4f} {outcome}"


def train(settings: Settings, folder: Path, out: Path, device: torch.device) -> float:
    train_set, valid_set = build_datasets(folder, settings)
    train_loader, valid_loader = build_loaders(train_set, valid_set, settings)
    model = build_model(settings).to(device)
    progress = ProgressLog(out / "progress.jsonl", len(train_loader))
    print(samples_line(len(train_set), len(valid_set)), flush=True)
    value = best = 0.0
    for phase in phases(settings):
        freeze_backbone(model, phase.backbone_frozen)
        optimizer = build_optimizer(model, settings, phase)
        for epoch in phase.epochs:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(phase, epoch)
            started = time.perf_counter()
            loss = train_one_epoch(model, train_loader, optimizer, device, progress, epoch)
            trained = time.perf_counter()
            value = evaluate_loader(model, valid_loader, device, settings)
            best = max(best, value)
            evaluated = time.perf_counter()
            save_checkpoint(out, epoch, model, optimizer, value, best)
            seconds = Seconds(trained - started, evaluated - trained, time.perf_counter() - evaluated)
            report_epoch(epoch + 1, loss, value, seconds)
    return value


def build_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--size", choices=data.SIZES, default="small")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--learning-rate", type=float, help="while the backbone is frozen")
    parser.add_argument("--full-learning-rate", type=float, help="once everything trains")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, help="folder made by data.py (default: made when missing)")
    parser.add_argument("--out", type=Path, help="checkpoints and logs go here (default: a temporary folder)")
    return parser


def settings_from(arguments: argparse.Namespace) -> Settings:
    base = defaults(arguments.size)
    given = {name: getattr(arguments, name, None) for name in Settings.__dataclass_fields__}
    return dataclasses.replace(base, **{name: value for name, value in given.items() if value is not None})


@contextlib.contextmanager
def run_folders(arguments: argparse.Namespace, settings: Settings) -> Iterator[tuple[Path, Path]]:
    """Yield the data, made if missing, and the output folder, removed at the end if none was named."""
    folder = arguments.data or data.ensure(settings.size, settings.seed)
    with tempfile.TemporaryDirectory() as temporary:
        out = arguments.out or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        yield folder, out


def main(argv: list[str] | None = None) -> int:
    arguments = build_parser("banknote detection, as the report found it").parse_args(argv)
    settings = settings_from(arguments)
    with run_folders(arguments, settings) as (folder, out):
        value = train(settings, folder, out, torch.device(arguments.device))
    print(final_line(value, settings), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
