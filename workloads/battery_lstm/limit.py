"""The training of naive.py written for the hardware: rows on the device, windows gathered there by index.

Same data, model, loss, clipping, Adam, batch size and number of updates; another shuffle order. On CUDA the
whole step is one graph. Recurrent layers stay in float32 with TF32 (lower precision was slower in cuDNN).
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import naive
import numpy as np
import pandas as pd
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import whole_step

EVALUATION_BATCH = 2048


@dataclass(frozen=True)
class ResidentWindows:
    """All rows once, and the row each window starts at: 1/lookback of the memory the windows would take."""

    rows: Tensor  # [row, feature]
    starts: Tensor  # [window]
    targets: Tensor  # [window, 1]
    steps: Tensor  # 0 … lookback - 1, as a column

    def __len__(self) -> int:
        return len(self.starts)

    def windows(self, indices: Tensor) -> Tensor:
        """Shaped [window, step, feature] but laid out by step, as recurrent layers read it: no copy there."""
        return self.rows[self.steps + self.starts[indices]].transpose(0, 1)


def resident_windows(frames: list[pd.DataFrame], lookback: int, device: torch.device) -> ResidentWindows:
    """The windows of naive.window_dataset, in the same order, without materialising them."""
    rows = np.concatenate([frame[naive.FEATURES].to_numpy(dtype=np.float32) for frame in frames])
    soc = np.concatenate([frame[naive.TARGET_COLUMN].to_numpy(dtype=np.float32) for frame in frames])
    first_rows = np.cumsum([0] + [len(frame) for frame in frames])[:-1]
    starts = np.concatenate(
        [first + np.arange(len(frame) - lookback + 1) for first, frame in zip(first_rows, frames, strict=True)]
    )
    return ResidentWindows(
        rows=torch.from_numpy(rows).to(device),
        starts=torch.from_numpy(starts).to(device),
        targets=torch.from_numpy(soc[starts + lookback - 1]).unsqueeze(1).to(device),
        steps=torch.arange(lookback, device=device).unsqueeze(1),
    )


def epoch_order(samples: int, generator: torch.Generator, device: torch.device) -> Tensor:
    return torch.randperm(samples, generator=generator, device=device)


@torch.inference_mode()
def rmse_of(model: naive.SequenceModel, valid: ResidentWindows) -> float:
    """naive.evaluate on resident data: large batches, one host sync."""
    model.eval()
    squared_error = torch.zeros((), device=valid.rows.device)
    for indices in torch.arange(len(valid), device=valid.rows.device).split(EVALUATION_BATCH):
        squared_error += (model(valid.windows(indices)) - valid.targets[indices]).square().sum()
    return math.sqrt(squared_error.item() / len(valid))


def build_step(
    model: naive.SequenceModel, train: ResidentWindows, settings: naive.Settings, device: torch.device
) -> whole_step.WholeStep:
    optimizer = naive.build_optimizer(model, settings)
    whole_step.make_fused(optimizer, device)

    def batch_loss(indices: Tensor) -> Tensor:
        return naive.loss_function(model(train.windows(indices)), train.targets[indices])

    return whole_step.WholeStep(
        model, optimizer, batch_loss, len(train), settings.batch_size, device, clip=settings.clip
    )


def train(settings: naive.Settings, folder: Path, out: Path, device: torch.device) -> float:
    torch.manual_seed(settings.seed)
    whole_step.use_fast_arithmetic(device)
    train_frames, valid_frames = naive.normalised_cycles(folder)
    train_data = resident_windows(train_frames, settings.lookback, device)
    valid_data = resident_windows(valid_frames, settings.lookback, device)
    model = naive.build_model(settings).to(device)
    step = build_step(model, train_data, settings, device)
    print(naive.samples_line(len(train_data), len(valid_data)), flush=True)
    generator = torch.Generator(device).manual_seed(settings.seed)
    for epoch in range(1, settings.epochs + 1):
        started = time.perf_counter()
        loss = step.epoch(epoch_order(len(train_data), generator, device))
        seconds = time.perf_counter() - started
        rmse = rmse_of(model, valid_data)
        print(naive.epoch_line(epoch, loss, rmse, seconds), flush=True)
    torch.save(model.state_dict(), out / "model.pth")
    return naive.evaluate(model, naive.window_dataset(valid_frames, settings.lookback), device, settings)


def main(arguments: list[str] | None = None) -> int:
    settings, folder, out, device = naive.parse_arguments(arguments)
    if settings.mixed_precision:
        sys.exit("limit.py trains in float32 with TF32 only; leave --mixed-precision out")
    with naive.output_folder(out) as where:
        print(naive.final_line(train(settings, folder, where, device), settings), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
