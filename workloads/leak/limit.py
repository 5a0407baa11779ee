"""The same training as naive.py, written by hand for the hardware: the limit to measure others against.

The data lives on the device. On CUDA one step (gather, forward, loss, backward, optimizer, loss sum) is one
CUDA graph and the host is waited for once an epoch. On the CPU the same step runs eagerly.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import evaluation
import graphs
import h5py
import naive
import torch
from model import LeakCNN
from torch import Tensor
from torch.nn import functional

EVALUATION_ROWS = 65536  # bounds the memory of one evaluation pass


@dataclass(frozen=True)
class Resident:
    """One part of the data on the device: mel `[rows, 1, 32, 1]`, and labels per row and file."""

    mel: Tensor
    labels: Tensor
    file_label: Tensor
    long: int
    short: int


@dataclass(frozen=True)
class Progress:
    """What a step reads and advances on the device, so that no step waits for the host."""

    order: Tensor  # [steps, batch] rows of this epoch
    cursor: Tensor  # [1] the next step
    loss_sum: Tensor


def load_resident(path: Path, device: torch.device) -> Resident:
    with h5py.File(path, "r") as file:
        _, long, short = file["mel"].shape[:3]
        mel = torch.from_numpy(file["mel"][:]).flatten(0, 2).unsqueeze(1)
        labels = torch.from_numpy(file["segment_label"][:]).flatten()
        file_label = torch.from_numpy(file["file_label"][:])
    return Resident(mel.to(device), labels.to(device), file_label.to(device), long, short)


def narrow_forward(model: LeakCNN, mel: Tensor) -> tuple[Tensor, Tensor]:
    """What `model(mel)` computes, without the two thirds of it that multiply padding.

    Segments are one frame wide, so the outer columns of every 3x3 kernel only ever meet zeros.
    """
    features = mel
    for layer, pooled in ((model.conv1, True), (model.conv2, True), (model.conv3, False)):
        features = functional.conv2d(features, layer.weight[..., 1:2], layer.bias, padding=(1, 0))
        features = functional.relu(features)
        features = model.pool(features) if pooled else features
    features = functional.relu(model.hidden(torch.flatten(features, 1)))
    return model.class_head(features), model.leak_head(features).squeeze(1)


def epoch_order(settings: naive.Settings, rows: int, epoch: int) -> Tensor:
    """The very batches naive.py draws: `[steps, batch]`, the incomplete last one dropped."""
    generator = torch.Generator().manual_seed(naive.shuffle_of_epoch(settings, epoch))
    order = torch.randperm(rows, generator=generator)
    steps = rows // settings.batch_size
    return order[: steps * settings.batch_size].view(steps, settings.batch_size)


def build_step(
    model: LeakCNN,
    optimizer: torch.optim.Optimizer,
    part: Resident,
    progress: Progress,
    bfloat16: bool,
    compiled: bool,
) -> Callable[[], None]:
    device_type = part.mel.device.type

    def batch_loss(mel: Tensor, labels: Tensor) -> Tensor:
        # The weight cache of autocast must not outlive a captured graph.
        with torch.autocast(device_type, torch.bfloat16, enabled=bfloat16, cache_enabled=False):
            class_logits, leak_logits = narrow_forward(model, mel)
        return naive.loss_function((class_logits.float(), leak_logits.float()), labels)

    loss_of = torch.compile(batch_loss, dynamic=False) if compiled else batch_loss

    def step() -> None:
        rows = progress.order.index_select(0, progress.cursor).squeeze(0)
        loss = loss_of(part.mel.index_select(0, rows), part.labels.index_select(0, rows))
        loss.backward()
        optimizer.step()
        progress.loss_sum.add_(loss.detach())
        progress.cursor.add_(1)

    return step


@torch.inference_mode()
def evaluate_resident(model: LeakCNN, part: Resident, bfloat16: bool) -> evaluation.Scores:
    """Segment and file scores from one pass over all files together, with one host sync."""
    model.eval()
    with torch.autocast(part.mel.device.type, torch.bfloat16, enabled=bfloat16):
        pieces = [narrow_forward(model, rows) for rows in part.mel.split(EVALUATION_ROWS)]
    class_logits, leak_logits = (torch.cat(column).float() for column in zip(*pieces, strict=True))
    model.train()
    probability = torch.sigmoid(leak_logits)
    correct = (class_logits.argmax(dim=1) == part.labels).sum()
    by_long = probability.view(-1, part.long, part.short).mean(dim=2)
    file_found = 2 * (by_long >= evaluation.THRESHOLD).sum(dim=1) >= part.long
    counts = [correct]
    counts += confusion(probability >= evaluation.THRESHOLD, part.labels == naive.LEAK)
    counts += confusion(file_found, part.file_label == naive.LEAK)
    correct_count, *rest = torch.stack(counts).tolist()  # the one host sync
    return evaluation.Scores(
        segment_f1=evaluation.f1_score(*rest[:3]),
        accuracy=correct_count / len(part.labels),
        file_f1=evaluation.f1_score(*rest[3:]),
    )


def confusion(found: Tensor, truth: Tensor) -> list[Tensor]:
    return [(found & truth).sum(), (found & ~truth).sum(), (~found & truth).sum()]


def build_optimizer(model: LeakCNN, settings: naive.Settings, device: torch.device) -> torch.optim.Optimizer:
    on_cuda = device.type == "cuda"
    return torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, fused=True, capturable=on_cuda)


def resume_run(checkpoint: Path, model: LeakCNN, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    first = naive.load_checkpoint(checkpoint, model, optimizer, scaler)
    for group in optimizer.param_groups:  # a checkpoint brings the flags of the run that wrote it
        group.update(fused=True, foreach=False, capturable=device.type == "cuda")
    for state in optimizer.state.values():
        state["step"] = state["step"].to(device, torch.float32)
    return first


def tune_backends() -> None:
    """TF32 for matrix products (convolutions have it by default), and measured convolution algorithms."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True


def train(settings: naive.Settings, arguments: argparse.Namespace, folder: Path, out: Path) -> float:
    tune_backends()
    device = torch.device(arguments.device)
    on_cuda = device.type == "cuda"
    bfloat16 = on_cuda and arguments.precision == "bf16"
    train_part = load_resident(folder / "train.h5", device)
    valid_part = load_resident(folder / "valid.h5", device)
    model = naive.build_model(settings).to(device, memory_format=torch.channels_last)
    optimizer = build_optimizer(model, settings, device)
    checkpoint = out / "last.pt"
    first = resume_run(checkpoint, model, optimizer, device) if arguments.resume else 0
    progress = new_progress(epoch_order(settings, len(train_part.labels), first), device)
    step = build_step(model, optimizer, train_part, progress, bfloat16, settings.compile and on_cuda)
    if on_cuda:
        run_step = graphs.captured(step, model, optimizer, [progress.cursor, progress.loss_sum])
    else:
        run_step = graphs.eager(step, optimizer)
    scaler = torch.amp.GradScaler(device.type, enabled=False)  # keeps the checkpoint format of naive.py
    for epoch in range(first, settings.epochs):
        started = time.perf_counter()
        loss = train_one_epoch(run_step, progress, epoch_order(settings, len(train_part.labels), epoch))
        trained = time.perf_counter()
        scores = evaluate_resident(model, valid_part, bfloat16)
        evaluated = time.perf_counter()
        naive.save_checkpoint(checkpoint, epoch, model, optimizer, scaler)
        seconds = naive.Seconds(trained - started, evaluated - trained, time.perf_counter() - evaluated)
        naive.report_epoch(epoch + 1, loss, scores, seconds)
    return evaluate_resident(model, valid_part, bfloat16).segment_f1


def new_progress(order: Tensor, device: torch.device) -> Progress:
    cursor = torch.zeros(1, dtype=torch.int64, device=device)
    return Progress(order.to(device), cursor, torch.zeros((), device=device))


def train_one_epoch(run_step: Callable[[], None], progress: Progress, order: Tensor) -> float:
    progress.order.copy_(order)
    progress.cursor.zero_()
    progress.loss_sum.zero_()
    steps = len(order)
    for _ in range(steps):
        run_step()
    return progress.loss_sum.item() / steps  # the one host sync of an epoch


def main(argv: list[str] | None = None) -> int:
    parser = naive.build_parser("leak detection, hand-written for the hardware")
    parser.add_argument("--precision", choices=("tf32", "bf16"), default="tf32", help="on CUDA")
    arguments = parser.parse_args(argv)
    settings = naive.settings_from(arguments)
    with naive.run_folders(arguments, settings) as (folder, out):
        value = train(settings, arguments, folder, out)
    naive.report_final(value, settings.size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
