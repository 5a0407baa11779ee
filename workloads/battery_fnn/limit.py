"""The training of naive.py written for the hardware: all rows on the device, batches gathered there by index.

Same data, model, loss, clipping, Adam, batch size and number of updates; another shuffle order. On CUDA the
whole step is one graph; `--compile` also fuses forward and backward (it pays only over many epochs).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import naive
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import whole_step

EVALUATION_BATCH = 1 << 17


@dataclass(frozen=True)
class ResidentRows:
    features: Tensor  # [row, feature]
    targets: Tensor  # [row, 1]

    def __len__(self) -> int:
        return len(self.targets)


def resident_rows(dataset: TensorDataset, device: torch.device) -> ResidentRows:
    features, targets = dataset.tensors
    return ResidentRows(features.to(device), targets.to(device))


def epoch_order(samples: int, generator: torch.Generator, device: torch.device) -> Tensor:
    return torch.randperm(samples, generator=generator, device=device)


@torch.inference_mode()
def rmse_of(model: nn.Module, valid: ResidentRows) -> float:
    """naive.evaluate on resident data: large batches, one host sync."""
    model.eval()
    squared_error = torch.zeros((), device=valid.targets.device)
    for features, targets in zip(
        valid.features.split(EVALUATION_BATCH), valid.targets.split(EVALUATION_BATCH), strict=True
    ):
        squared_error += (model(features) - targets).square().sum()
    return math.sqrt(squared_error.item() / len(valid))


def build_step(
    model: nn.Module, train: ResidentRows, settings: naive.Settings, device: torch.device, compiled: bool
) -> whole_step.WholeStep:
    optimizer = naive.build_optimizer(model, settings)
    whole_step.make_fused(optimizer, device)

    def batch_loss(indices: Tensor) -> Tensor:
        return naive.loss_function(model(train.features[indices]), train.targets[indices])

    return whole_step.WholeStep(
        model,
        optimizer,
        batch_loss,
        len(train),
        settings.batch_size,
        device,
        clip=settings.clip,
        compiled=compiled,
    )


def train(settings: naive.Settings, folder: Path, out: Path, device: torch.device, compiled: bool = False) -> float:
    torch.manual_seed(settings.seed)
    whole_step.use_fast_arithmetic(device)
    train_rows, valid_rows = naive.build_datasets(folder, settings)
    train_data, valid_data = resident_rows(train_rows, device), resident_rows(valid_rows, device)
    model = naive.build_model(settings).to(device)
    step = build_step(model, train_data, settings, device, compiled)
    print(naive.samples_line(len(train_data), len(valid_data)), flush=True)
    generator = torch.Generator(device).manual_seed(settings.seed)
    for epoch in range(1, settings.epochs + 1):
        started = time.perf_counter()
        loss = step.epoch(epoch_order(len(train_data), generator, device))
        seconds = time.perf_counter() - started
        rmse = rmse_of(model, valid_data)
        print(naive.epoch_line(epoch, loss, rmse, seconds), flush=True)
    torch.save(model.state_dict(), out / "model.pth")
    return naive.evaluate(model, valid_rows, device, settings)


def main(arguments: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--compile", action="store_true")
    chosen, others = own.parse_known_args(arguments)
    settings, folder, out, device = naive.parse_arguments(others)
    if settings.mixed_precision:
        sys.exit("limit.py trains in float32 with TF32 only; leave --mixed-precision out")
    with naive.output_folder(out) as where:
        final = train(settings, folder, where, device, chosen.compile)
        print(naive.final_line(final, settings), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
