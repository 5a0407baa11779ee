"""The same training as naive.py, written by hand for the hardware: the limit to measure others against.

The pictures live on the device as uint8. On CUDA one step (gather, convert, forward, loss, backward,
optimizer, loss sum) is one CUDA graph and the host is waited for once an epoch. On the CPU it runs eagerly.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import graphs
import metrics
import naive
import numpy as np
import torch
from loss import PADDING_CLASS
from model import CLASS_COUNT, NoteDetector
from torch import Tensor
from torch.utils.data import DataLoader

EVALUATION_PICTURES = 64  # bounds the memory of one evaluation pass


@dataclass(frozen=True)
class Resident:
    """One part of the data on the device: pictures `[n, side, side, 3]` uint8, notes `[n, most, 5]`, padded."""

    images: Tensor
    notes: Tensor


@dataclass(frozen=True)
class Progress:
    """What a step reads and advances on the device, so that no step waits for the host."""

    order: Tensor  # [steps, batch] rows of this epoch
    cursor: Tensor  # [1] the next step
    loss_sum: Tensor


@dataclass(frozen=True)
class Steps:
    """The steps of an epoch: the full batches, and the shorter last one where there is one."""

    progress: list[Progress]
    run: list[Callable[[], None]]


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
    progress: Progress,
    bfloat16: bool,
    compiled: bool,
) -> Callable[[], None]:
    device_type = part.images.device.type

    def batch_loss(images: Tensor, notes: Tensor) -> Tensor:
        # The weight cache of autocast must not outlive a captured graph.
        with torch.autocast(device_type, torch.bfloat16, enabled=bfloat16, cache_enabled=False):
            outputs = model(as_input(images))
        return naive.loss_function(outputs, batch_targets(notes))

    loss_of = torch.compile(batch_loss, dynamic=False) if compiled else batch_loss

    def step() -> None:
        rows = progress.order.index_select(0, progress.cursor).squeeze(0)
        loss = loss_of(part.images.index_select(0, rows), part.notes.index_select(0, rows))
        loss.backward()
        optimizer.step()
        progress.loss_sum.add_(loss.detach())
        progress.cursor.add_(1)

    return step


def build_steps(
    model: NoteDetector,
    optimizer: torch.optim.Optimizer,
    part: Resident,
    batch_size: int,
    bfloat16: bool,
    compiled: bool,
) -> Steps:
    device = part.images.device
    full, tail = divmod(len(part.images), batch_size)
    shapes = [shape for shape in ((full, batch_size), (1, tail)) if shape[0] and shape[1]]
    steps = Steps([], [])
    for shape in shapes:
        progress = Progress(
            order=torch.arange(shape[0] * shape[1], device=device).view(shape),
            cursor=torch.zeros(1, dtype=torch.int64, device=device),
            loss_sum=torch.zeros((), device=device),
        )
        step = build_step(model, optimizer, part, progress, bfloat16, compiled)
        rewind = [progress.cursor, progress.loss_sum]
        if device.type == "cuda":
            steps.run.append(graphs.captured(step, model, optimizer, rewind))
        else:
            steps.run.append(graphs.eager(step, optimizer))
        steps.progress.append(progress)
    return steps


def train_one_epoch(steps: Steps, batches: list[Tensor]) -> float:
    order = torch.cat(batches)
    for progress in steps.progress:
        rows = progress.order.numel()
        progress.order.copy_(order[:rows].view_as(progress.order))
        order = order[rows:]
        progress.cursor.zero_()
        progress.loss_sum.zero_()
    for progress, run in zip(steps.progress, steps.run, strict=True):
        for _ in range(len(progress.order)):
            run()
    total = torch.stack([progress.loss_sum for progress in steps.progress]).sum()
    return total.item() / len(batches)  # the one host sync of an epoch


@torch.inference_mode()
def evaluate_resident(model: NoteDetector, part: Resident, bfloat16: bool) -> float:
    """The metric of naive.evaluate: all pictures of a pass are cleaned of doubles together, on the device."""
    model.eval()
    kept = []
    for images in part.images.split(EVALUATION_PICTURES):
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16):
            outputs = model(as_input(images))
        candidates = metrics.strongest(*metrics.decode(outputs))
        kept.append((*candidates, metrics.suppress_doubles(*candidates)))
    model.train()
    boxes, confidences, classes, stays = (torch.cat(column).cpu().numpy() for column in zip(*kept, strict=True))
    found = [
        metrics.Detections(boxes[i][stays[i]], confidences[i][stays[i]], classes[i][stays[i]])
        for i in range(len(boxes))
    ]
    truth = [naive.corners(notes[notes[:, 0] >= 0]).numpy() for notes in part.notes.cpu()]
    return metrics.mean_average_precision(found, truth, CLASS_COUNT)


def build_optimizer(
    model: NoteDetector, settings: naive.Settings, phase: naive.Phase, device: torch.device
) -> torch.optim.Optimizer:
    """naive's, with one kernel for all parameters; on CUDA its step count and rate live on the device."""
    on_cuda = device.type == "cuda"
    plain = naive.build_optimizer(model, settings, phase)
    rate = torch.tensor(phase.learning_rate, device=device) if on_cuda else phase.learning_rate
    for group in plain.param_groups:
        group.update(fused=True, foreach=False, capturable=on_cuda, lr=rate)
    return plain


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # in place: the graph reads this address
        else:
            group["lr"] = rate


def tune_backends() -> None:
    """TF32 for matrix products (convolutions have it by default), and measured convolution algorithms."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True


def train(settings: naive.Settings, arguments: argparse.Namespace, folder: Path, out: Path) -> float:
    tune_backends()
    device = torch.device(arguments.device)
    on_cuda = device.type == "cuda"
    bfloat16 = on_cuda and arguments.precision == "bf16"
    train_set, valid_set = naive.build_datasets(folder, settings)
    train_part, valid_part = load_resident(train_set, device), load_resident(valid_set, device)
    shuffle = torch.Generator().manual_seed(settings.seed)
    order = DataLoader(range(len(train_set)), settings.batch_size, shuffle=True, generator=shuffle)
    model = naive.build_model(settings).to(device, memory_format=torch.channels_last)
    value = best = 0.0
    for phase in naive.phases(settings):
        naive.freeze_backbone(model, phase.backbone_frozen)
        optimizer = build_optimizer(model, settings, phase, device)
        compiled = arguments.compile and on_cuda
        steps = build_steps(model, optimizer, train_part, settings.batch_size, bfloat16, compiled)
        for epoch in phase.epochs:
            set_learning_rate(optimizer, naive.learning_rate_at(phase, epoch))
            started = time.perf_counter()
            loss = train_one_epoch(steps, list(order))
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
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="on CUDA")
    arguments = parser.parse_args(argv)
    settings = naive.settings_from(arguments)
    with naive.run_folders(arguments, settings) as (folder, out):
        value = train(settings, arguments, folder, out)
    naive.report_final(value, settings.size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
