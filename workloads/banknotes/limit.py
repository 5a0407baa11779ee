"""The same training as naive.py, written by hand for the hardware: the limit to measure others against.

The pictures live on the device as uint8. On CUDA one step is one graph and the host is waited for once an
epoch (whole_step.py). On the CPU the same step runs eagerly.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import metrics
import naive
import numpy as np
import torch
from loss import PADDING_CLASS
from model import CLASS_COUNT, NoteDetector
from torch import Tensor
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import whole_step

EVALUATION_PICTURES = 64  # bounds the memory of one evaluation pass


@dataclass(frozen=True)
class Resident:
    """One part of the data on the device: pictures `[n, side, side, 3]` uint8, notes `[n, most, 5]`, padded."""

    images: Tensor
    notes: Tensor


def load_resident(part: naive.NoteImages, device: torch.device) -> Resident:
    images = np.stack([np.load(path) for path in part.images])
    notes = [part.notes(index) for index in range(len(part))]
    padded = torch.zeros(len(notes), max(len(rows) for rows in notes), 5)
    padded[..., 0] = PADDING_CLASS
    for index, rows in enumerate(notes):
        padded[index, : len(rows)] = rows
    return Resident(torch.from_numpy(images).to(device), padded.to(device))


def batch_targets(notes: Tensor) -> Tensor:
    """Rows of (image, class, cx, cy, w, h) from `[batch, most, 5]`, padding included."""
    batch, most, _ = notes.shape
    number = torch.arange(batch, device=notes.device, dtype=notes.dtype)
    image = number[:, None, None].expand(batch, most, 1)
    return torch.cat((image, notes), dim=2).view(batch * most, 6)


def as_input(images: Tensor) -> Tensor:
    """uint8 `[batch, side, side, 3]` to float pictures, already in the channels-last layout."""
    return images.permute(0, 3, 1, 2).float() / 255.0


def build_step(
    model: NoteDetector,
    optimizer: torch.optim.Optimizer,
    part: Resident,
    batch_size: int,
    bfloat16: bool,
    compiled: bool,
) -> whole_step.WholeStep:
    device = part.images.device

    def batch_loss(rows: Tensor) -> Tensor:
        # The weight cache of autocast must not outlive a captured graph.
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16, cache_enabled=False):
            outputs = model(as_input(part.images[rows]))
        return naive.loss_function(outputs, batch_targets(part.notes[rows]))

    samples = len(part.images)
    return whole_step.WholeStep(model, optimizer, batch_loss, samples, batch_size, device, compiled=compiled)


@torch.inference_mode()
def evaluate_resident(model: NoteDetector, part: Resident, bfloat16: bool) -> float:
    """Compute the metric of naive.evaluate: duplicates are removed from all pictures together, on the device."""
    model.eval()
    retained = []
    for images in part.images.split(EVALUATION_PICTURES):
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16):
            outputs = model(as_input(images))
        candidates = metrics.strongest(*metrics.decode(outputs))
        retained.append((*candidates, metrics.suppress_doubles(*candidates)))
    model.train()
    boxes, confidences, classes, stays = (torch.cat(column).cpu().numpy() for column in zip(*retained, strict=True))
    found = [
        metrics.Detections(boxes[i][stays[i]], confidences[i][stays[i]], classes[i][stays[i]])
        for i in range(len(boxes))
    ]
    truth = [naive.corners(notes[notes[:, 0] >= 0]).numpy() for notes in part.notes.cpu()]
    return metrics.mean_average_precision(found, truth, CLASS_COUNT)


def build_optimizer(
    model: NoteDetector, settings: naive.Settings, phase: naive.Phase, device: torch.device
) -> torch.optim.Optimizer:
    optimizer = naive.build_optimizer(model, settings, phase)
    whole_step.make_fused(optimizer, device)
    return optimizer


def train(settings: naive.Settings, arguments: argparse.Namespace, folder: Path, out: Path) -> float:
    device = torch.device(arguments.device)
    whole_step.use_fast_arithmetic(device)
    bfloat16 = device.type == "cuda" and arguments.precision == "bf16"
    train_set, valid_set = naive.build_datasets(folder, settings)
    train_part, valid_part = load_resident(train_set, device), load_resident(valid_set, device)
    shuffle = torch.Generator().manual_seed(settings.seed)
    order = DataLoader(range(len(train_set)), settings.batch_size, shuffle=True, generator=shuffle)
    model = naive.build_model(settings).to(device, memory_format=torch.channels_last)
    print(naive.samples_line(len(train_set), len(valid_set)), flush=True)
    value = best = 0.0
    for phase in naive.phases(settings):
        naive.freeze_backbone(model, phase.backbone_frozen)
        optimizer = build_optimizer(model, settings, phase, device)
        compiled = arguments.compile and arguments.device != "cpu"
        step = build_step(model, optimizer, train_part, settings.batch_size, bfloat16, compiled)
        for epoch in phase.epochs:
            whole_step.set_learning_rate(optimizer, naive.learning_rate_at(phase, epoch))
            started = time.perf_counter()
            loss = step.epoch(torch.cat(list(order)))
            trained = time.perf_counter()
            value = evaluate_resident(model, valid_part, bfloat16)
            best = max(best, value)
            evaluated = time.perf_counter()
            naive.save_checkpoint(out, epoch, model, optimizer, value, best)
            seconds = naive.Seconds(trained - started, evaluated - trained, time.perf_counter() - evaluated)
            naive.report_epoch(epoch + 1, loss, value, seconds)
    return value


def main(argv: list[str] | None = None) -> int:
    parser = naive.build_parser("banknote detection, hand-written for the hardware")
    parser.add_argument("--precision", choices=("bf16", "tf32"), default="bf16", help="on CUDA")
    parser.add_argument(
        "--compile",
        action="store_true",
        help="on CUDA; it took more than 35 s on an H200",
    )
    arguments = parser.parse_args(argv)
    settings = naive.settings_from(arguments)
    with naive.run_folders(arguments, settings) as (folder, out):
        value = train(settings, arguments, folder, out)
    print(naive.final_line(value, settings), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
