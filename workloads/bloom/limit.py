"""The training of naive.py written for the hardware: bits and two-grams on the device from the start.

Same data, model, loss, Adam, batch size and number of updates; another shuffle order. The file is read once
and encoded by whole columns. On CUDA the whole step is one graph; `--compile` also fuses forward and
backward (it pays only over many epochs).
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import data
import h5py
import naive
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import whole_step

EVALUATION_BATCH = 8192


@dataclass(frozen=True)
class ResidentPeople:
    bits: Tensor  # [person, bit], 0 or 1
    labels: Tensor  # [person, two-gram], 0 or 1
    uids: Tensor  # [person]

    def __len__(self) -> int:
        return len(self.bits)

    def to(self, device: torch.device) -> ResidentPeople:
        return ResidentPeople(self.bits.to(device), self.labels.to(device), self.uids.to(device))

    def as_dataset(self) -> TensorDataset:
        """What naive.evaluate reads, on the host."""
        return TensorDataset(self.bits.cpu(), self.labels.cpu(), self.uids.cpu())


def load_people(folder: Path) -> tuple[ResidentPeople, ResidentPeople]:
    """The two datasets of naive.build_datasets as float32 tensors on the host."""
    with h5py.File(folder / data.FILE_NAME, "r") as file:
        text = data.joined_text(*(file[name][:] for name in data.TEXT_COLUMNS))
        filters, uids = file["bloomfilter"][:], file["uid"][:]
    bits = (filters.view(np.uint8).reshape(len(filters), data.BITS) - ord("0")).astype(np.float32)
    labels = np.zeros((len(text), len(data.TWO_GRAMS)), dtype=np.float32)
    labels[data.two_gram_numbers(text)] = 1.0
    everyone = [torch.from_numpy(values) for values in (bits, labels, uids)]
    known = int(naive.TRAIN_SHARE * len(text))
    return (
        ResidentPeople(*(values[:known] for values in everyone)),
        ResidentPeople(*(values[known:] for values in everyone)),
    )


def epoch_order(samples: int, generator: torch.Generator, device: torch.device) -> Tensor:
    return torch.randperm(samples, generator=generator, device=device)


@torch.inference_mode()
def dice_of(model: nn.Module, valid: ResidentPeople) -> float:
    """naive.evaluate on resident data: whole batches at once, one host sync."""
    model.eval()
    total = torch.zeros((), device=valid.bits.device)
    batches = zip(valid.bits.split(EVALUATION_BATCH), valid.labels.split(EVALUATION_BATCH), strict=True)
    for bits, labels in batches:
        predicted = (torch.sigmoid(model(bits)) > naive.THRESHOLD).float()
        both, either = (predicted * labels).sum(1), predicted.sum(1) + labels.sum(1)
        total += torch.where(either > 0, 2 * both / either.clamp(min=1), 1.0).sum()
    return total.item() / len(valid)


def build_step(
    model: nn.Module, train: ResidentPeople, settings: naive.Settings, device: torch.device, compiled: bool
) -> whole_step.WholeStep:
    optimizer = naive.build_optimizer(model, settings)
    whole_step.make_fused(optimizer, device)

    def batch_loss(indices: Tensor) -> Tensor:
        return naive.loss_function(model(train.bits[indices]), train.labels[indices])

    return whole_step.WholeStep(
        model,
        optimizer,
        batch_loss,
        len(train),
        settings.batch_size,
        device,
        compiled=compiled,
    )


def train(settings: naive.Settings, folder: Path, out: Path, device: torch.device, compiled: bool = False) -> float:
    torch.manual_seed(settings.seed)
    whole_step.use_fast_arithmetic(device)
    train_people, valid_people = load_people(folder)
    train_data, valid_data = train_people.to(device), valid_people.to(device)
    model = naive.build_model(settings).to(device)
    step = build_step(model, train_data, settings, device, compiled)
    print(naive.samples_line(len(train_data), len(valid_data)), flush=True)
    generator = torch.Generator(device).manual_seed(settings.seed)
    for epoch in range(1, settings.epochs + 1):
        started = time.perf_counter()
        loss = step.epoch(epoch_order(len(train_data), generator, device))
        seconds = time.perf_counter() - started
        score = dice_of(model, valid_data)
        print(naive.epoch_line(epoch, loss, score, seconds), flush=True)
    torch.save(model.state_dict(), out / "model.pth")
    return naive.evaluate(model, valid_people.as_dataset(), device, settings)


def main(arguments: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--compile", action="store_true")
    chosen, others = own.parse_known_args(arguments)
    settings, folder, out, device = naive.parse_arguments(others)
    with naive.output_folder(out) as where:
        final = train(settings, folder, where, device, chosen.compile)
        print(naive.final_line(final, settings), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
