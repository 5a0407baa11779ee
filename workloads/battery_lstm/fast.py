"""The training of naive.py on hotlap.engine: same data, model, loss, clipping, Adam, batch size and updates.

The rows of all cycles live on the device once, windows are gathered there, and on CUDA a step is one graph. What the
CSV files become is kept in the engine's cache. The order of the shuffle is the engine's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import naive
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache as generated

from hotlap.engine.data import Cache, Windows
from hotlap.engine.metrics import RMSE
from hotlap.engine.recipe import Checkpoints, Recipe
from hotlap.engine.records import EpochRecord, StepRecord
from hotlap.engine.recurrent import fast_layers
from hotlap.engine.trainer import Trainer

EVALUATION_BATCH = 2048


def cycle_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Rows, state of charge and length of every cycle, of both parts."""
    arrays = {}
    for part, frames in zip(("train", "valid"), naive.normalised_cycles(folder), strict=True):
        arrays[f"{part}_rows"] = np.concatenate([frame[naive.FEATURES].to_numpy(np.float32) for frame in frames])
        arrays[f"{part}_soc"] = np.concatenate([frame[naive.TARGET_COLUMN].to_numpy(np.float32) for frame in frames])
        arrays[f"{part}_lengths"] = np.array([len(frame) for frame in frames])
    return arrays


def windows(arrays: dict[str, np.ndarray], part: str, lookback: int, device: torch.device) -> Windows:
    """The windows of naive.window_dataset, in the same order."""
    ends = np.cumsum(arrays[f"{part}_lengths"])[:-1]
    series, targets = (np.split(arrays[f"{part}_{name}"], ends) for name in ("rows", "soc"))
    return Windows(series, lookback, targets, device=device)


def build_sources(folder: Path, settings: naive.Settings, device: torch.device) -> tuple[Windows, Windows]:
    kept = Cache(generated.data_root() / "engine")
    arrays = kept.arrays(cycle_arrays, inputs=[folder], arguments={"folder": folder}, version="1")
    return windows(arrays, "train", settings.lookback, device), windows(arrays, "valid", settings.lookback, device)


def train(settings: naive.Settings, folder: Path, out: Path, device: torch.device) -> float:
    torch.manual_seed(settings.seed)
    train_data, valid_data = build_sources(folder, settings, device)
    model = naive.build_model(settings).to(device)
    for line in fast_layers(model, device, settings.batch_size, settings.lookback):
        print(line, file=sys.stderr, flush=True)
    recipe = Recipe(
        batch_size=settings.batch_size,
        evaluation_batch=EVALUATION_BATCH,
        precision="fp16" if settings.mixed_precision else "tf32",
        clip=settings.clip,
        seed=settings.seed,
        checkpoints=Checkpoints(out),
    )

    def tell(record: StepRecord | EpochRecord) -> None:
        if isinstance(record, EpochRecord):
            line = naive.epoch_line(record.epoch, record.loss, record.scores[naive.METRIC], record.seconds)
            print(line, flush=True)

    print(naive.samples_line(train_data.rows, valid_data.rows), flush=True)
    trainer = Trainer(
        model,
        naive.loss_function,
        naive.build_optimizer(model, settings),
        recipe,
        metrics={naive.METRIC: RMSE()},
        callbacks=[tell],
        device=device,
    )
    history = trainer.fit(train_data, valid_data, settings.epochs)
    return history.last.scores[naive.METRIC]


def main(arguments: list[str] | None = None) -> int:
    settings, folder, out, device = naive.parse_arguments(arguments)
    with naive.output_folder(out) as where:
        print(naive.final_line(train(settings, folder, where, device), settings), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
