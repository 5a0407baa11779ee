"""The training of naive.py on hotlap.engine: same data, model, loss, clipping, Adam, batch size and updates.

The rows of all cycles live on the device once, windows are gathered there, and on CUDA a step is one graph. What the
CSV files become is kept in the engine's cache. The order of the shuffle is the engine's.
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

from hotlap.engine.config_scripts import ScriptArguments, configured
from hotlap.engine.config_templates import TrainingConfig
from hotlap.engine.data import Cache, Windows
from hotlap.engine.metrics import RMSE
from hotlap.engine.recipe import Checkpoints
from hotlap.engine.records import EpochRecord, StepRecord, seconds_apart
from hotlap.engine.recurrent import fast_layers
from hotlap.engine.trainer import Trainer

EVALUATION_BATCH = 2048
TEMPLATES = ("lstm", "lstm-small-memory", "gru")


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
    cache = Cache(generated.data_root() / "engine")
    arrays = cache.arrays(cycle_arrays, inputs=[folder], arguments={"folder": folder}, version="1")
    return windows(arrays, "train", settings.lookback, device), windows(arrays, "valid", settings.lookback, device)


def read_arguments(
    arguments: list[str] | None,
) -> tuple[naive.Settings, ScriptArguments, Path, Path | None, torch.device]:
    """The options of naive.py, and a configuration below them."""
    given = configured(arguments, TEMPLATES)
    model: dict[str, object] = {}
    if given.config is not None:
        if given.config.model.dropout:
            print(f"--config: model.dropout = {given.config.model.dropout}: this model has none", file=sys.stderr)
            raise SystemExit(2)
        model = {name: getattr(given.config.model, name) for name in ("cell", "lookback", "hidden", "layers")}
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
    train_data, valid_data = build_sources(folder, settings, device)
    model = naive.build_model(settings).to(device)
    for line in fast_layers(model, device, settings.batch_size, settings.lookback):
        print(line, file=sys.stderr, flush=True)
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
