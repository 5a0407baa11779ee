"""State of charge from single rows of battery measurements: FNN training as the battery reports found it."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import data
import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

METRIC = "rmse"
HIGHER_IS_BETTER = False
TARGETS = {"tiny": 0.06, "small": 0.05, "report": 0.045}

MEASURED = ["voltage_v", "current_a", "temperature_c"]
FEATURES = [*MEASURED, "voltage_filtered", "current_filtered", "power"]
TARGET_COLUMN = "soc"
FILTER_SECONDS = 60.0

Log = Callable[[str], None]
Row = tuple[Tensor, ...]


@dataclass(frozen=True)
class Settings:
    """The settings of a training run; `workers` -1 means chosen by the machine's memory."""

    size: str
    epochs: int
    batch_size: int
    hidden: int
    layers: int = 2
    learning_rate: float = 0.002
    clip: float = 0.5
    seed: int = 0
    workers: int = -1
    mixed_precision: bool = False


def defaults(size: str) -> Settings:
    """Return the recipe whose quality target is TARGETS[size]."""
    return {
        "tiny": Settings(size, epochs=12, batch_size=64, hidden=64, learning_rate=0.003),
        "small": Settings(size, epochs=12, batch_size=4096, hidden=64),
        "report": Settings(size, epochs=10, batch_size=4096, hidden=64),
    }[size]


def build_model(settings: Settings) -> nn.Module:
    widths = [len(FEATURES)] + [settings.hidden] * settings.layers
    layers: list[nn.Module] = []
    for width_in, width_out in itertools.pairwise(widths):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1))


def loss_function(model_output: Tensor, *targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(model_output, targets[0])


def build_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=settings.learning_rate)


def add_column(frame: pd.DataFrame, name: str, values: pd.Series) -> pd.DataFrame:
    result_df = frame.copy()
    result_df[name] = values
    return result_df


def add_features(frame: pd.DataFrame) -> pd.DataFrame:
    """Low-pass filtered voltage and current, and power."""
    step_seconds = frame["time_s"].iloc[1] - frame["time_s"].iloc[0]
    span = 1.0 + FILTER_SECONDS / step_seconds
    frame = add_column(frame, "voltage_filtered", frame["voltage_v"].ewm(span=span).mean())
    frame = add_column(frame, "current_filtered", frame["current_a"].ewm(span=span).mean())
    return add_column(frame, "power", frame["voltage_v"] * frame["current_a"])


def load_cycles(folder: Path) -> list[pd.DataFrame]:
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        raise FileNotFoundError(f"no cycles in {folder}; make them with: python data.py --size small")
    return [add_features(pd.read_csv(path)) for path in paths]


def normalised_cycles(folder: Path) -> tuple[list[pd.DataFrame], list[pd.DataFrame]]:
    """Return the training and validation cycles, with features scaled to 0…1 by the range seen in training."""
    train, valid = load_cycles(folder / "train"), load_cycles(folder / "valid")
    everything = pd.concat(train)
    low, high = everything[FEATURES].min(), everything[FEATURES].max()

    def normalise(frame: pd.DataFrame) -> pd.DataFrame:
        result_df = frame.copy()
        result_df[FEATURES] = (frame[FEATURES] - low) / (high - low)
        return result_df

    return [normalise(frame) for frame in train], [normalise(frame) for frame in valid]


def row_dataset(frames: list[pd.DataFrame]) -> TensorDataset:
    everything = pd.concat(frames)
    features = torch.tensor(everything[FEATURES].to_numpy(dtype=np.float32))
    targets = torch.tensor(everything[TARGET_COLUMN].to_numpy(dtype=np.float32))
    return TensorDataset(features, targets.unsqueeze(1))


def build_datasets(folder: Path, settings: Settings) -> tuple[TensorDataset, TensorDataset]:
    train, valid = normalised_cycles(folder)
    return row_dataset(train), row_dataset(valid)


def workers_for_this_machine() -> int:
    """Return workers by the report's memory tiers for feed-forward models, never more than there are cores."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    tier = 2 if memory_gb < 8 else 4 if memory_gb < 16 else 8
    return min(tier, os.cpu_count() or 1)


def build_loader(dataset: Dataset[Row], settings: Settings, device: torch.device, shuffle: bool) -> DataLoader[Row]:
    workers = workers_for_this_machine() if settings.workers < 0 else settings.workers
    return DataLoader(
        dataset,
        batch_size=settings.batch_size,
        shuffle=shuffle,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        prefetch_factor=4 if workers else None,
        persistent_workers=workers > 0,
    )


def train_epoch(
    model: nn.Module,
    loader: DataLoader[Row],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    device: torch.device,
    settings: Settings,
    log_callback: Log,
) -> float:
    """One pass over the shuffled rows; returns the mean of the batches' losses."""
    model.train()
    total_train_loss = []
    for batch_idx, (X_batch, y_batch) in enumerate(loader):  # noqa: N806 - the report's names
        X_batch, y_batch = X_batch.to(device), y_batch.to(device)  # noqa: N806
        optimizer.zero_grad()
        with torch.autocast(device.type, enabled=settings.mixed_precision):
            output = model(X_batch)
            loss = loss_function(output.float(), y_batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=settings.clip)
        scaler.step(optimizer)
        scaler.update()
        total_train_loss.append(loss.item())
        log_callback(f"Batch: {batch_idx}/{len(loader)}, Loss: {loss.item():.4f}")
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return sum(total_train_loss) / len(total_train_loss)


def validate(model: nn.Module, loader: DataLoader[Row], device: torch.device, log_callback: Log) -> float:
    """Root mean square error over all rows of the loader."""
    model.eval()
    squared_error, count = 0.0, 0
    with torch.no_grad():
        for batch_idx, (X_batch, y_batch) in enumerate(loader):  # noqa: N806
            X_batch, y_batch = X_batch.to(device), y_batch.to(device)  # noqa: N806
            loss = loss_function(model(X_batch), y_batch)
            squared_error += loss.item() * X_batch.size(0)
            count += X_batch.size(0)
            log_callback(f"Validation, Batch: {batch_idx}/{len(loader)}, Loss: {loss.item():.4f}")
    return math.sqrt(squared_error / count)


def evaluate(model: nn.Module, valid_dataset: Dataset[Row], device: torch.device, settings: Settings) -> float:
    """The quality metric of a model, for any arm that trained it."""
    loader = build_loader(valid_dataset, replace(settings, workers=0), device, shuffle=False)
    return evaluate_loader(model, loader, device, settings)


def evaluate_loader(model: nn.Module, loader: DataLoader[Row], device: torch.device, settings: Settings) -> float:
    """Evaluate for an arm that loads the validation part its own way."""
    return validate(model, loader, device, lambda line: None)


def train(settings: Settings, folder: Path, out: Path, device: torch.device) -> float:
    """Train: print one line per epoch, keep the best model in `out`, return the last RMSE."""
    torch.manual_seed(settings.seed)
    train_data, valid_data = build_datasets(folder, settings)
    model = build_model(settings).to(device)
    optimizer = build_optimizer(model, settings)
    scaler = torch.amp.GradScaler(device.type, enabled=settings.mixed_precision)
    train_loader = build_loader(train_data, settings, device, shuffle=True)
    valid_loader = build_loader(valid_data, settings, device, shuffle=False)
    print(samples_line(len(train_data), len(valid_data)), flush=True)
    best = rmse = math.inf
    with open(out / "training.log", "a", buffering=1) as log_file:

        def log_callback(line: str) -> None:
            log_file.write(line + "\n")

        for epoch in range(1, settings.epochs + 1):
            started = time.perf_counter()
            loss = train_epoch(model, train_loader, optimizer, scaler, device, settings, log_callback)
            seconds = time.perf_counter() - started
            rmse = validate(model, valid_loader, device, log_callback)
            print(epoch_line(epoch, loss, rmse, seconds), flush=True)
            if rmse < best:
                best = rmse
                torch.save(model.state_dict(), out / "best_model.pth")
    return rmse


def parse_arguments(arguments: list[str] | None = None) -> tuple[Settings, Path, Path | None, torch.device]:
    """Yield settings, data folder (made if it is the default and missing), output folder and device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=tuple(data.SIZES), default="small")
    parser.add_argument("--mixed-precision", action="store_true", default=None, help="fp16, CUDA only")
    for name in ("epochs", "batch-size", "hidden", "layers", "workers", "seed"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("learning-rate", "clip"):
        parser.add_argument(f"--{name}", type=float)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, help="folder made by data.py (default: its cache)")
    parser.add_argument("--out", type=Path, help="folder for model and log (default: a temporary one)")
    chosen = vars(parser.parse_args(arguments))
    names = {field.name for field in fields(Settings)}
    given = {name: value for name, value in chosen.items() if name in names and value is not None}
    settings = replace(defaults(chosen["size"]), **given)
    device = torch.device(chosen["device"])
    if settings.mixed_precision and device.type != "cuda":
        parser.error(f"--mixed-precision needs a CUDA device, not {device}; leave it out")
    return settings, chosen["data"] or data.ensure(settings.size, settings.seed), chosen["out"], device


@contextlib.contextmanager
def output_folder(out: Path | None) -> Iterator[Path]:
    """Yield `out`, made if missing, or a temporary folder that is removed afterwards."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out
    else:
        with tempfile.TemporaryDirectory(prefix="battery_fnn-") as temporary:
            yield Path(temporary)


def samples_line(train: int, valid: int) -> str:
    """Return a line with how many samples an epoch trains on and how many score it."""
    return f"train {train} samples  valid {valid} samples"


def epoch_line(epoch: int, loss: float, metric: float, seconds: float) -> str:
    return f"epoch {epoch}  loss {loss:.5f}  {METRIC} {metric:.4f}  seconds {seconds:.6g}"


def final_line(metric: float, settings: Settings) -> str:
    target = TARGETS[settings.size]
    outcome = "reached" if metric <= target else "missed"
    return f"final {METRIC} {metric:.4f} target {target:.4f} {outcome}"


def main(arguments: list[str] | None = None) -> int:
    settings, folder, out, device = parse_arguments(arguments)
    with output_folder(out) as where:
        print(final_line(train(settings, folder, where, device), settings), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
