"""The training of naive.py on hotlap.engine: same data, model, losses, phases, rates, batch size and updates.

The pictures live on the device as uint8 and become floats in the step; on CUDA a step is one graph, one for each of
the two phases. The order of the shuffle is the engine's.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import metrics
import naive
import numpy as np
import torch
from loss import PADDING_CLASS, loss_terms
from model import CLASS_COUNT, NoteDetector
from torch import Tensor, nn

from hotlap.engine.data import Arrays, Beside, NpyFolder, mapped, resident
from hotlap.engine.recipe import Checkpoints, Phase, Recipe
from hotlap.engine.records import EpochRecord, StepRecord
from hotlap.engine.schedule import Linear
from hotlap.engine.trainer import Trainer

EVALUATION_PICTURES = 64  # bounds the memory of one evaluation pass


def padded_notes(part: naive.NoteImages) -> np.ndarray:
    """`[pictures, most, 5]`: the notes of every picture, filled up with notes of no class."""
    notes = [part.notes(index).numpy() for index in range(len(part))]
    padded = np.zeros((len(notes), max(1, max(len(rows) for rows in notes)), 5), dtype=np.float32)
    padded[..., 0] = PADDING_CLASS
    for index, rows in enumerate(notes):
        padded[index, : len(rows)] = rows
    return padded


def as_input(images: Tensor) -> Tensor:
    """uint8 `[batch, side, side, 3]` to float pictures, already in the channels-last layout."""
    return images.permute(0, 3, 1, 2).float() / 255.0


def batch_targets(notes: Tensor) -> Tensor:
    """Rows of (image, class, cx, cy, w, h) from `[batch, most, 5]`, padding included."""
    batch, most, _ = notes.shape
    number = torch.arange(batch, device=notes.device, dtype=notes.dtype)
    image = number[:, None, None].expand(batch, most, 1)
    return torch.cat((image, notes), dim=2).view(batch * most, 6)


def prepared(images: Tensor, notes: Tensor) -> tuple[Tensor, Tensor]:
    return as_input(images), batch_targets(notes)


def pictures(part: naive.NoteImages, device: torch.device) -> Any:
    """Pictures and padded notes, on the device where they fit."""
    return resident(Beside(NpyFolder(part.images[0].parent), Arrays(padded_notes(part))), device=device)


def batches(source: Any, device: torch.device) -> Any:
    order = torch.arange(source.rows, device=device)
    if hasattr(source, "gather"):
        return (source.gather(index) for index in order.split(EVALUATION_PICTURES))
    return source.batches(order.cpu(), EVALUATION_PICTURES, device, False)


class Evaluation:
    """The metric of naive.evaluate; all pictures of a pass are cleaned of doubles together, on the device."""

    def __init__(self, source: Any, device: torch.device, bfloat16: bool) -> None:
        self.source, self.device, self.bfloat16 = source, device, bfloat16

    def __call__(self, model: nn.Module) -> dict[str, float]:
        kept, truth = [], []
        for images, notes in batches(self.source, self.device):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                outputs = model(as_input(images))
            candidates = metrics.strongest(*metrics.decode(outputs))
            kept.append((*candidates, metrics.suppress_doubles(*candidates)))
            truth.append(notes)
        return {naive.METRIC: self.precision(kept, torch.cat(truth).cpu())}

    def precision(self, kept: list[tuple[Tensor, ...]], notes: Tensor) -> float:
        boxes, confidences, classes, stays = (torch.cat(column).cpu().numpy() for column in zip(*kept, strict=True))
        found = [
            metrics.Detections(boxes[i][stays[i]], confidences[i][stays[i]], classes[i][stays[i]])
            for i in range(len(boxes))
        ]
        truth = [naive.corners(rows[rows[:, 0] >= 0]).numpy() for rows in notes]
        return metrics.mean_average_precision(found, truth, CLASS_COUNT)


def named_losses(outputs: tuple[Tensor, ...], targets: Tensor) -> dict[str, Tensor]:
    box, objectness, classes = loss_terms(outputs, targets)
    return {"box": box, "objectness": objectness, "classes": classes}


def recipe_of(settings: naive.Settings, out: Path, on_cuda: bool, bfloat16: bool) -> Recipe:
    """The head alone on the frozen backbone, then everything: each phase with moments and rates of its own."""
    phases = tuple(
        Phase(
            len(phase.epochs),
            ("backbone.",) if phase.backbone_frozen else (),
            phase.learning_rate,
            schedule=Linear(end=0.05, by="epoch"),
            fresh_optimizer=True,
        )
        for phase in naive.phases(settings)
    )
    return Recipe(
        batch_size=settings.batch_size,
        precision="bf16" if bfloat16 else "tf32",
        channels_last=on_cuda,
        seed=settings.seed,
        monitor=naive.METRIC,
        higher_is_better=True,
        checkpoints=Checkpoints(out),
        phases=phases,
    )


def tell(record: StepRecord | EpochRecord) -> None:
    if isinstance(record, EpochRecord):
        value = record.scores[naive.METRIC]
        naive.report_epoch(
            record.epoch, record.loss, value, naive.Seconds(record.seconds, record.evaluation_seconds, 0.0)
        )


def train(settings: naive.Settings, arguments: argparse.Namespace, folder: Path, out: Path) -> float:
    device = torch.device(arguments.device)
    on_cuda = device.type == "cuda"
    bfloat16 = on_cuda and arguments.precision == "bf16"
    train_set, valid_set = naive.build_datasets(folder, settings)
    train_data, valid_data = pictures(train_set, device), pictures(valid_set, device)
    model: NoteDetector = naive.build_model(settings).to(device)
    print(naive.samples_line(train_data.rows, valid_data.rows), flush=True)
    trainer = Trainer(
        model,
        named_losses,
        naive.build_optimizer(model, settings),
        recipe_of(settings, out, on_cuda, bfloat16),
        evaluate=Evaluation(valid_data, device, bfloat16),
        callbacks=[tell],
        device=device,
    )
    history = trainer.fit(mapped(train_data, prepared))
    return history.last.scores[naive.METRIC]


def main(argv: list[str] | None = None) -> int:
    parser = naive.build_parser("banknote detection on hotlap.engine")
    parser.add_argument("--precision", choices=("bf16", "tf32"), default="bf16", help="on CUDA")
    arguments = parser.parse_args(argv)
    settings = naive.settings_from(arguments)
    with naive.run_folders(arguments, settings) as (folder, out):
        value = train(settings, arguments, folder, out)
    print(naive.final_line(value, settings), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
