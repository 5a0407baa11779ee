"""The training of naive.py on hotlap.engine: same data, model, loss, clipping, Adam, batch size and updates.

All rows live on the device and on CUDA the whole step is one graph. What the CSV files become is kept in the engine's
cache. The order of the shuffle is the engine's.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import naive
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache as generated

from hotlap.engine import RMSE, Checkpoints, EpochRecord, StepRecord, Trainer
from hotlap.engine.config_scripts import ScriptArguments, configured
from hotlap.engine.config_templates import TrainingConfig
from hotlap.engine.data import Cache, Tensors
from hotlap.engine.records import seconds_apart

EVALUATION_BATCH = 1 << 17
TEMPLATES = ("fnn",)


def row_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Features and state of charge of every row, of both parts."""
    arrays = {}
    for part, frames in zip(("train", "valid"), naive.normalised_cycles(folder), strict=True):
        features, targets = naive.row_dataset(frames).tensors
        arrays[f"{part}_features"], arrays[f"{part}_targets"] = features.numpy(), targets.numpy()
    return arrays


def build_sources(folder: Path, device: torch.device) -> tuple[Tensors, Tensors]:
    cache = Cache(generated.data_root() / "engine")
    arrays = cache.arrays(row_arrays, inputs=[folder], arguments={"folder": folder}, version="1")
    train, valid = (
        Tensors(arrays[f"{part}_features"], arrays[f"{part}_targets"], device=device) for part in ("train", "valid")
    )
    return train, valid


def read_arguments(
    arguments: list[str] | None,
) -> tuple[naive.Settings, ScriptArguments, Path, Path | None, torch.device]:
    """Yield the options of naive.py, which override a configuration."""
    given = configured(arguments, TEMPLATES)
    model: dict[str, object] = {}
    if given.config is not None:
        model = {name: getattr(given.config.model, name) for name in ("hidden", "layers")}
        model["clip"] = given.config.training.clip or math.inf
    settings, folder, out, device = naive.parse_arguments(given.arguments(**model))
    return settings, given, folder, out, device


def training_of(settings: naive.Settings, given: ScriptArguments, device: torch.device) -> TrainingConfig:
    usual = TrainingConfig(settings.batch_size, settings.epochs, settings.learning_rate, EVALUATION_BATCH)
    decided = {"clip": settings.clip if math.isfinite(settings.clip) else None}
    half = {"precision": "fp16"} if settings.mixed_precision else {}
    return given.settled(settings, device, usual, **decided, **half)


def tell(record: StepRecord | EpochRecord) -> None:
    if isinstance(record, EpochRecord):
        print(naive.epoch_line(record.epoch, record.loss, record.scores[naive.METRIC], record.seconds), flush=True)
        print(f"    {seconds_apart(record)}", file=sys.stderr, flush=True)


def train(settings: naive.Settings, given: ScriptArguments, folder: Path, out: Path, device: torch.device) -> float:
    torch.manual_seed(settings.seed)
    train_data, valid_data = build_sources(folder, device)
    model = naive.build_model(settings)
    trainer = Trainer(
        model,
        naive.loss_function,
        given.decay(naive.build_optimizer(model, settings)),
        training_of(settings, given, device).recipe(Checkpoints(out)),
        metrics={naive.METRIC: RMSE()},
        callbacks=[tell],
        device=device,
    )
    print(naive.samples_line(train_data.rows, valid_data.rows), flush=True)
    return trainer.fit(train_data, valid_data, settings.epochs).last.scores[naive.METRIC]


def main(arguments: list[str] | None = None) -> int:
    settings, given, folder, out, device = read_arguments(arguments)
    with naive.output_folder(out) as where:
        print(naive.final_line(train(settings, given, folder, where, device), settings), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
