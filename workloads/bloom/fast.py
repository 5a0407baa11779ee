"""The training of naive.py on hotlap.engine: same data, model, loss, Adam, batch size and number of updates.

Filters and names are encoded by whole columns, once: the result is kept in the engine's cache as a bit a value. On the
device they are float32, so that a step gathers and does not cast. On CUDA the whole step is one graph. The order of the
shuffle is the engine's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import data
import h5py
import naive
import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache as generated

from hotlap.engine import Checkpoints, Dice, EpochRecord, StepRecord, Trainer
from hotlap.engine.config_scripts import ScriptArguments, configured
from hotlap.engine.config_templates import TrainingConfig
from hotlap.engine.data import Cache, Tensors, bits, ngrams
from hotlap.engine.records import seconds_apart

EVALUATION_BATCH = 8192
TEMPLATES = ("bloom",)


def encoded(path: Path) -> dict[str, np.ndarray]:
    """Bits and two-grams of everyone, eight to a byte."""
    with h5py.File(path, "r") as file:
        columns = tuple(file[name][:] for name in data.TEXT_COLUMNS)
        filters = file["bloomfilter"][:]
    both = {"bits": bits(filters), "labels": ngrams(columns, data.TWO_GRAMS)}
    return {name: np.packbits(values.numpy(), axis=1) for name, values in both.items()}


def unpacked(packed: np.ndarray, width: int, device: torch.device) -> Tensor:
    """Return `[rows, width]` float32 on the device, unpacked there: only an eighth of the bytes is transferred."""
    places = torch.arange(7, -1, -1, device=device, dtype=torch.uint8)
    out = torch.empty(len(packed), width, device=device)
    for start in range(0, len(packed), EVALUATION_BATCH):  # bounds what the bytes take on their way
        part = torch.from_numpy(np.ascontiguousarray(packed[start : start + EVALUATION_BATCH])).to(device)
        out[start : start + len(part)] = (part[:, :, None] >> places & 1).flatten(1)[:, :width]
    return out


def build_sources(folder: Path, device: torch.device) -> tuple[Tensors, Tensors]:
    """Return the people known by name, to train on, and the rest."""
    path = folder / data.FILE_NAME
    cache = Cache(generated.data_root() / "engine")
    arrays = cache.arrays(encoded, inputs=[path], arguments={"path": path}, version="1")
    inputs = unpacked(arrays["bits"], data.BITS, device)
    labels = unpacked(arrays["labels"], len(data.TWO_GRAMS), device)
    known = int(naive.TRAIN_SHARE * len(inputs))
    return Tensors(inputs[:known], labels[:known]), Tensors(inputs[known:], labels[known:])


def probabilities(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sigmoid(outputs), labels


def read_arguments(
    arguments: list[str] | None,
) -> tuple[naive.Settings, ScriptArguments, Path, Path | None, torch.device]:
    """Yield the options of naive.py, which override a configuration."""
    given = configured(arguments, TEMPLATES)
    model = {} if given.config is None else {name: getattr(given.config.model, name) for name in ("hidden", "layers")}
    settings, folder, out, device = naive.parse_arguments(given.arguments(**model))
    return settings, given, folder, out, device


def training_of(settings: naive.Settings, given: ScriptArguments, device: torch.device) -> TrainingConfig:
    usual = TrainingConfig(settings.batch_size, settings.epochs, settings.learning_rate, EVALUATION_BATCH)
    return given.settled(settings, device, usual)


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
        metrics={naive.METRIC: Dice(naive.THRESHOLD, of=probabilities)},
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
