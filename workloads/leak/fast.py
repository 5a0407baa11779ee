"""The training of naive.py on hotlap.engine: same data, model, losses, AdamW, batch size and number of updates.

All segments live on the device, and on CUDA the whole step is one graph. Files are judged together: the segments of
all of them are averaged by one scatter. The order of the shuffle is the engine's.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import evaluation
import h5py
import naive
import torch
from limit import narrow_forward
from model import LeakCNN
from torch import Tensor

from hotlap.engine import BinaryF1, Checkpoints, EpochRecord, GroupMeans, Mean, Metric, StepRecord, Trainer
from hotlap.engine.config_scripts import ScriptArguments, configured
from hotlap.engine.config_templates import TrainingConfig
from hotlap.engine.data import Tensors
from hotlap.engine.metrics import f1, majority
from hotlap.engine.records import seconds_apart

EVALUATION_ROWS = 65536  # bounds the memory of one evaluation pass
TEMPLATES = ("leak",)

Outputs = tuple[Tensor, Tensor]


class NarrowLeakCNN(LeakCNN):
    """The same parameters and results; segments are one frame wide, so two thirds of the products are with padding."""

    def forward(self, mel: Tensor) -> Outputs:
        return narrow_forward(self, mel)


def build_model(settings: naive.Settings) -> NarrowLeakCNN:
    torch.manual_seed(settings.seed)
    return NarrowLeakCNN()


def load_part(path: Path, device: torch.device) -> tuple[Tensors, Tensor, int]:
    """Return mel `[rows, 1, 32, 1]`, label and long segment of every row; the files' labels; long segments per file."""
    with h5py.File(path, "r") as file:
        _, long, short = file["mel"].shape[:3]
        mel = torch.from_numpy(file["mel"][:]).flatten(0, 2).unsqueeze(1)
        labels = torch.from_numpy(file["segment_label"][:]).flatten()
        file_label = torch.from_numpy(file["file_label"][:])
    return Tensors(mel, labels, torch.arange(len(labels)) // short, device=device), file_label.to(device), long


def segment_probability(outputs: Outputs, labels: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sigmoid(outputs[1]), labels == naive.LEAK


def long_probability(outputs: Outputs, _: Tensor, long_segment: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sigmoid(outputs[1]), long_segment


def is_right(outputs: Outputs, labels: Tensor, _: Tensor) -> Tensor:
    return (outputs[0].argmax(dim=1) == labels).double()


def build_metrics(file_label: Tensor, long: int) -> dict[str, Metric]:
    """A file leaks when at least half of its long segments do, a long segment when the mean of its short ones does."""
    truth = file_label == naive.LEAK

    def file_f1(probability: Tensor) -> Tensor:
        return f1(majority(probability >= evaluation.THRESHOLD, of=long), truth)

    return {
        naive.METRIC: BinaryF1(evaluation.THRESHOLD, of=segment_probability),
        "accuracy": Mean(is_right),
        "file_f1": GroupMeans(len(file_label) * long, of=long_probability, finish=file_f1),
    }


def loss_function(outputs: Outputs, labels: Tensor, _: Tensor) -> Tensor:
    return naive.loss_function(outputs, labels)


def tell(record: StepRecord | EpochRecord) -> None:
    if not isinstance(record, EpochRecord):
        return
    scores = record.scores
    print(naive.epoch_line(record.epoch, record.loss, scores[naive.METRIC], record.seconds), flush=True)
    details = f"accuracy {scores['accuracy']:.4f}  file_f1 {scores['file_f1']:.4f}"
    print(f"    {details}  {seconds_apart(record)}", file=sys.stderr, flush=True)


def training_of(
    settings: naive.Settings, arguments: argparse.Namespace, given: ScriptArguments, device: torch.device
) -> TrainingConfig:
    usual = TrainingConfig(
        settings.batch_size,
        settings.epochs,
        settings.learning_rate,
        EVALUATION_ROWS,
        channels_last=True,
        compile="on" if settings.compile and device.type == "cuda" else "off",
        drop_last=True,
    )
    decided = {"precision": "fp16" if arguments.mixed_precision else arguments.precision}
    if given.config is not None and arguments.compile is not None:
        decided["compile"] = "on" if arguments.compile else "off"
    return given.settled(settings, device, usual, **decided)


def train(
    settings: naive.Settings, arguments: argparse.Namespace, given: ScriptArguments, folder: Path, out: Path
) -> float:
    device = torch.device(arguments.device)
    train_data, _, _ = load_part(folder / "train.h5", device)
    valid_data, file_label, long = load_part(folder / "valid.h5", device)
    model, training = build_model(settings), training_of(settings, arguments, given, device)
    trainer = Trainer(
        model,
        loss_function,
        given.decay(naive.build_optimizer(model, settings)),
        training.recipe(Checkpoints(out), higher_is_better=True),
        metrics=build_metrics(file_label, long),
        callbacks=[tell],
        device=device,
    )
    left_over = train_data.rows % settings.batch_size if training.drop_last else 0
    print(naive.samples_line(train_data.rows - left_over, valid_data.rows), flush=True)
    history = trainer.fit(train_data, valid_data, settings.epochs, resume=arguments.resume)
    return history.last.scores[naive.METRIC]


def main(argv: list[str] | None = None) -> int:
    given = configured(argv, TEMPLATES)
    parser = naive.build_parser("leak detection on hotlap.engine")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16", "fp16"), default="tf32", help="on CUDA")
    arguments = parser.parse_args(given.arguments(precision=given.training and given.training.precision))
    settings = naive.settings_from(arguments)
    with naive.run_folders(arguments, settings) as (folder, out):
        value = train(settings, arguments, given, folder, out)
    print(naive.final_line(value, settings), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
