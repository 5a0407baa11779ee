"""The training of naive.py on hotlap.engine: same data, model, losses, phases, rates, batch size and updates.

The pictures live on the device as uint8 and become floats in the step; on CUDA a step is one graph, one for each of
the two phases. The order of the shuffle is the engine's.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import metrics
import naive
import numpy as np
import torch
from loss import PADDING_CLASS, loss_terms
from model import CLASS_COUNT, NoteDetector
from torch import Tensor, nn

from hotlap.engine.config_scripts import ScriptArguments, configured
from hotlap.engine.config_templates import TwoPhases
from hotlap.engine.data import Arrays, NpyFolder, ZipReader, mapped, resident
from hotlap.engine.nn import fuse_norms
from hotlap.engine.recipe import Checkpoints, Phase, Recipe
from hotlap.engine.records import EpochRecord, StepRecord, seconds_apart
from hotlap.engine.trainer import Trainer

EVALUATION_PICTURES = 64  # bounds the memory of one evaluation pass
TEMPLATES = ("banknotes",)


def padded_notes(part: naive.NoteImages) -> np.ndarray:
    """Return the notes of every picture as `[pictures, most, 5]`, padded with notes of no class."""
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
    return resident(ZipReader(NpyFolder(part.images[0].parent), Arrays(padded_notes(part))), device=device)


def batches(source: Any, device: torch.device, size: int) -> Any:
    order = torch.arange(source.rows, device=device)
    if hasattr(source, "gather"):
        return (source.gather(index) for index in order.split(size))
    return source.batches(order.cpu(), size, device, False)


class Evaluation:
    """The metric of naive.evaluate; duplicates are removed from all pictures of a pass together, on the device."""

    def __init__(self, source: Any, device: torch.device, training: TwoPhases) -> None:
        self.source, self.device, self.bfloat16 = source, device, training.precision == "bf16"
        self.batch = training.evaluation_batch or EVALUATION_PICTURES

    def __call__(self, model: nn.Module) -> dict[str, float]:
        retained, truth = [], []
        for images, notes in batches(self.source, self.device, self.batch):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                outputs = model(as_input(images))
            candidates = metrics.strongest(*metrics.decode(outputs))
            retained.append((*candidates, metrics.suppress_doubles(*candidates)))
            truth.append(notes)
        return {naive.METRIC: self.precision(retained, torch.cat(truth).cpu())}

    def precision(self, retained: list[tuple[Tensor, ...]], notes: Tensor) -> float:
        boxes, confidences, classes, stays = (torch.cat(column).cpu().numpy() for column in zip(*retained, strict=True))
        found = [
            metrics.Detections(boxes[i][stays[i]], confidences[i][stays[i]], classes[i][stays[i]])
            for i in range(len(boxes))
        ]
        truth = [naive.corners(rows[rows[:, 0] >= 0]).numpy() for rows in notes]
        return metrics.mean_average_precision(found, truth, CLASS_COUNT)


def named_losses(outputs: tuple[Tensor, ...], targets: Tensor) -> dict[str, Tensor]:
    box, objectness, classes = loss_terms(outputs, targets)
    return {"box": box, "objectness": objectness, "classes": classes}


def training_of(
    settings: naive.Settings, arguments: argparse.Namespace, given: ScriptArguments, device: torch.device
) -> TwoPhases:
    usual = TwoPhases(
        settings.batch_size,
        settings.epochs,
        settings.learning_rate,
        channels_last=device.type == "cuda",
        schedule="linear",
        schedule_end=0.05,
        schedule_by="epoch",
    )
    precision = arguments.precision if device.type == "cuda" or given.config is not None else "tf32"
    frozen = min(settings.frozen_epochs, settings.epochs - 1)
    decided = {"frozen_epochs": frozen, "full_learning_rate": settings.full_learning_rate}
    training = given.settled(settings, device, usual, precision=precision, **decided)
    assert isinstance(training, TwoPhases)
    return training


def recipe_of(settings: naive.Settings, training: TwoPhases, out: Path) -> Recipe:
    """Train the head alone on the frozen backbone, then everything; each phase has moments and rates of its own."""
    phases = tuple(
        Phase(
            len(phase.epochs), ("backbone.",) if phase.backbone_frozen else (), phase.learning_rate,
            fresh_optimizer=True,
        )
        for phase in naive.phases(settings)
    )  # fmt: skip
    return training.recipe(Checkpoints(out), monitor=naive.METRIC, higher_is_better=True, phases=phases)


def tell(record: StepRecord | EpochRecord) -> None:
    if isinstance(record, EpochRecord):
        print(naive.epoch_line(record.epoch, record.loss, record.scores[naive.METRIC], record.seconds), flush=True)
        print(f"    {seconds_apart(record)}", file=sys.stderr, flush=True)


def train(
    settings: naive.Settings, arguments: argparse.Namespace, given: ScriptArguments, folder: Path, out: Path
) -> float:
    device = torch.device(arguments.device)
    training = training_of(settings, arguments, given, device)
    train_set, valid_set = naive.build_datasets(folder, settings)
    train_data, valid_data = pictures(train_set, device), pictures(valid_set, device)
    model: NoteDetector = naive.build_model(settings).to(device)
    fuse_norms(model)
    print(naive.samples_line(train_data.rows, valid_data.rows), flush=True)
    trainer = Trainer(
        model,
        named_losses,
        given.decay(naive.build_optimizer(model, settings)),
        recipe_of(settings, training, out),
        evaluate=Evaluation(valid_data, device, training),
        callbacks=[tell],
        device=device,
    )
    history = trainer.fit(mapped(train_data, prepared))
    return history.last.scores[naive.METRIC]


def settings_from(arguments: argparse.Namespace, given: ScriptArguments) -> naive.Settings:
    """Take from the configuration what the options of naive.py leave out."""
    settings: naive.Settings = naive.settings_from(arguments)
    if given.config is None:
        return settings
    model, frozen = given.config.model, given.config.training.frozen_epochs
    return replace(settings, width=model.width, depth=model.depth, frozen_epochs=frozen)


def main(argv: list[str] | None = None) -> int:
    given = configured(argv, TEMPLATES)
    parser = naive.build_parser("banknote detection on hotlap.engine")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16", "fp16"), default="bf16", help="on CUDA")
    rates = ("precision", "full_learning_rate")
    arguments = parser.parse_args(given.arguments(**{name: getattr(given.training, name, None) for name in rates}))
    settings = settings_from(arguments, given)
    with naive.run_folders(arguments, settings) as (folder, out):
        value = train(settings, arguments, given, folder, out)
    print(naive.final_line(value, settings), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
