"""The same training as naive.py, written by hand for the hardware: the limit to measure others against.

The data lives on the device. On CUDA one step is one graph and the host is waited for once an epoch
(whole_step.py). On the CPU the same step runs eagerly.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import evaluation
import h5py
import naive
import torch
from model import LeakCNN
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import whole_step

EVALUATION_ROWS = 65536  # bounds the memory of one evaluation pass


@dataclass(frozen=True)
class Resident:
    """One part of the data on the device: mel `[rows, 1, 32, 1]`, and labels per row and file."""

    mel: Tensor
    labels: Tensor
    file_label: Tensor
    long: int
    short: int


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


def trained_rows(settings: naive.Settings, rows: int) -> int:
    """The rows of an epoch: naive.py drops the incomplete last batch."""
    return rows // settings.batch_size * settings.batch_size


def epoch_order(settings: naive.Settings, rows: int, epoch: int) -> Tensor:
    """Yield the very batches that naive.py draws, one after the other."""
    generator = torch.Generator().manual_seed(naive.shuffle_of_epoch(settings, epoch))
    return torch.randperm(rows, generator=generator)[: trained_rows(settings, rows)]


def build_step(
    model: LeakCNN,
    optimizer: torch.optim.Optimizer,
    part: Resident,
    settings: naive.Settings,
    bfloat16: bool,
) -> whole_step.WholeStep:
    device = part.mel.device

    def batch_loss(rows: Tensor) -> Tensor:
        # The weight cache of autocast must not outlive a captured graph.
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16, cache_enabled=False):
            class_logits, leak_logits = narrow_forward(model, part.mel[rows])
        return naive.loss_function((class_logits.float(), leak_logits.float()), part.labels[rows])

    samples = trained_rows(settings, len(part.labels))
    compiled = settings.compile and device.type == "cuda"
    return whole_step.WholeStep(model, optimizer, batch_loss, samples, settings.batch_size, device, compiled=compiled)


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


def resume_run(checkpoint: Path, model: LeakCNN, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    first = naive.load_checkpoint(checkpoint, model, optimizer, scaler)
    for state in optimizer.state.values():  # a checkpoint brings the steps as the run that wrote it kept them
        state["step"] = state["step"].to(device, torch.float32)
    return first


def train(settings: naive.Settings, arguments: argparse.Namespace, folder: Path, out: Path) -> float:
    device = torch.device(arguments.device)
    whole_step.use_fast_arithmetic(device)
    bfloat16 = device.type == "cuda" and arguments.precision == "bf16"
    train_part = load_resident(folder / "train.h5", device)
    valid_part = load_resident(folder / "valid.h5", device)
    rows = len(train_part.labels)
    model = naive.build_model(settings).to(device, memory_format=torch.channels_last)
    optimizer = naive.build_optimizer(model, settings)
    checkpoint = out / "last.pt"
    first = resume_run(checkpoint, model, optimizer, device) if arguments.resume else 0
    whole_step.make_fused(optimizer, device)  # after resuming: a checkpoint brings its own flags
    step = build_step(model, optimizer, train_part, settings, bfloat16)
    scaler = torch.amp.GradScaler(device.type, enabled=False)  # keeps the checkpoint format of naive.py
    print(naive.samples_line(trained_rows(settings, rows), len(valid_part.labels)), flush=True)
    for epoch in range(first, settings.epochs):
        started = time.perf_counter()
        loss = step.epoch(epoch_order(settings, rows, epoch))
        trained = time.perf_counter()
        scores = evaluate_resident(model, valid_part, bfloat16)
        evaluated = time.perf_counter()
        naive.save_checkpoint(checkpoint, epoch, model, optimizer, scaler)
        seconds = naive.Seconds(trained - started, evaluated - trained, time.perf_counter() - evaluated)
        naive.report_epoch(epoch + 1, loss, scores, seconds)
    return evaluate_resident(model, valid_part, bfloat16).segment_f1


def main(argv: list[str] | None = None) -> int:
    parser = naive.build_parser("leak detection, hand-written for the hardware")
    parser.add_argument("--precision", choices=("tf32", "bf16"), default="tf32", help="on CUDA")
    arguments = parser.parse_args(argv)
    settings = naive.settings_from(arguments)
    with naive.run_folders(arguments, settings) as (folder, out):
        value = train(settings, arguments, folder, out)
    print(naive.final_line(value, settings), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
