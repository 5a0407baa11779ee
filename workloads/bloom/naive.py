"""Two-grams of names and birth dates from their Bloom filters: training as the Bloom report found it."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import data
import h5py
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

METRIC = "dice"
HIGHER_IS_BETTER = True
TARGETS = {"tiny": 0.7, "small": 0.95, "report": 0.95}

TRAIN_SHARE = 0.8
THRESHOLD = 0.5

Person = tuple[Tensor, Tensor, int]


@dataclass(frozen=True)
class Settings:
    """The settings of a training run."""

    size: str
    epochs: int
    batch_size: int
    hidden: int
    layers: int = 1
    learning_rate: float = 0.001
    seed: int = 0
    workers: int = 2


def defaults(size: str) -> Settings:
    """Return the recipe whose quality target is TARGETS[size]."""
    return {
        "tiny": Settings(size, epochs=5, batch_size=16, hidden=128, learning_rate=0.003),
        "small": Settings(size, epochs=5, batch_size=32, hidden=512),
        "report": Settings(size, epochs=3, batch_size=32, hidden=512, layers=2),
    }[size]


def extract_two_grams(text: str) -> set[str]:
    return {text[start : start + 2] for start in range(len(text) - 1)}


def label_to_tensor(two_grams: set[str], all_two_grams: list[str]) -> Tensor:
    return torch.tensor([1.0 if two_gram in two_grams else 0.0 for two_gram in all_two_grams])


def bit_string_to_tensor(bits: str) -> Tensor:
    return torch.tensor([int(bit) for bit in bits], dtype=torch.float32)


class BloomFilterDataset(Dataset[Person]):
    """Bits, two-grams and number of every person; the last two columns are the filter and the number."""

    def __init__(self, people: pd.DataFrame, all_two_grams: list[str]) -> None:
        self.uids = people["uid"].tolist()
        self.bit_tensors = people["bloomfilter"].apply(bit_string_to_tensor).tolist()
        text = people.iloc[:, :-2].astype(str).apply("".join, axis=1)
        two_grams = text.apply(extract_two_grams)
        self.label_tensors = two_grams.apply(lambda grams: label_to_tensor(grams, all_two_grams)).tolist()

    def __len__(self) -> int:
        return len(self.uids)

    def __getitem__(self, index: int) -> Person:
        return self.bit_tensors[index], self.label_tensors[index], self.uids[index]


def load_people(folder: Path) -> pd.DataFrame:
    path = folder / data.FILE_NAME
    if not path.exists():
        raise FileNotFoundError(f"no file {path}; make it with: python data.py --size small")
    with h5py.File(path, "r") as file:
        columns = {name: file[name][:] for name in (*data.TEXT_COLUMNS, "bloomfilter", "uid")}
    frame = pd.DataFrame({name: list(values) for name, values in columns.items()})
    for name in (*data.TEXT_COLUMNS, "bloomfilter"):
        frame[name] = frame[name].apply(lambda value: value.decode())
    return frame


def build_datasets(folder: Path, settings: Settings) -> tuple[Dataset[Person], Dataset[Person]]:
    """Return the people known by name, to train on, and the rest; each part loads the file by itself."""
    known = load_people(folder)
    known = known[: int(TRAIN_SHARE * len(known))]
    rest = load_people(folder)
    rest = rest[int(TRAIN_SHARE * len(rest)) :]
    return BloomFilterDataset(known, data.TWO_GRAMS), BloomFilterDataset(rest, data.TWO_GRAMS)


def build_model(settings: Settings) -> nn.Module:
    layers: list[nn.Module] = []
    width = data.BITS
    for _ in range(settings.layers):
        layers.append(nn.Linear(width, settings.hidden))
        layers.append(nn.ReLU())
        width = settings.hidden
    layers.append(nn.Linear(width, len(data.TWO_GRAMS)))
    return nn.Sequential(*layers)


def loss_function(model_output: Tensor, *targets: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(model_output, targets[0])


def build_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=settings.learning_rate)


def build_loader(dataset: Dataset[Person], settings: Settings, shuffle: bool) -> DataLoader[Person]:
    return DataLoader(dataset, batch_size=settings.batch_size, shuffle=shuffle, num_workers=settings.workers)


def train_epoch(
    model: nn.Module, loader: DataLoader[Person], optimizer: torch.optim.Optimizer, device: torch.device
) -> float:
    """Train one pass over the shuffled people; return the mean loss of a person."""
    model.train()
    running_loss, count = 0.0, 0
    for bits, labels, _ in loader:
        bits, labels = bits.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = loss_function(model(bits), labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * labels.size(0)
        count += labels.size(0)
    return running_loss / count


def decode_two_grams(values: list[float], all_two_grams: list[str]) -> set[str]:
    return {two_gram for two_gram, value in zip(all_two_grams, values, strict=True) if value > THRESHOLD}


def dice(predicted: set[str], actual: set[str]) -> float:
    """Return 2·|both| / (|predicted| + |actual|): 1 if all two-grams are found and no others."""
    if not predicted and not actual:
        return 1.0
    return 2 * len(predicted & actual) / (len(predicted) + len(actual))


def validate(model: nn.Module, loader: DataLoader[Person], device: torch.device) -> float:
    """Mean Dice coefficient of a person's two-grams."""
    model.eval()
    scores = []
    with torch.no_grad():
        for bits, labels, _ in loader:
            probabilities = torch.sigmoid(model(bits.to(device))).cpu()
            for probability, label in zip(probabilities, labels, strict=True):
                predicted = decode_two_grams(probability.tolist(), data.TWO_GRAMS)
                actual = decode_two_grams(label.tolist(), data.TWO_GRAMS)
                scores.append(dice(predicted, actual))
    return sum(scores) / len(scores)


def evaluate(model: nn.Module, valid_dataset: Dataset[Any], device: torch.device, settings: Settings) -> float:
    """The quality metric of a model, for any arm that trained it."""
    loader = build_loader(valid_dataset, replace(settings, workers=0), shuffle=False)
    return evaluate_loader(model, loader, device, settings)


def evaluate_loader(model: nn.Module, loader: DataLoader[Any], device: torch.device, settings: Settings) -> float:
    """Evaluate for an arm that loads the validation part its own way."""
    return validate(model, loader, device)


def train(settings: Settings, folder: Path, out: Path, device: torch.device) -> float:
    """Train: print one line per epoch, keep the best model in `out`, return the last Dice."""
    torch.manual_seed(settings.seed)
    train_data, valid_data = build_datasets(folder, settings)
    model = build_model(settings).to(device)
    optimizer = build_optimizer(model, settings)
    train_loader = build_loader(train_data, settings, shuffle=True)
    valid_loader = build_loader(valid_data, settings, shuffle=False)
    print(samples_line(len(train_data), len(valid_data)), flush=True)
    best = score = -1.0
    for epoch in range(1, settings.epochs + 1):
        started = time.perf_counter()
        loss = train_epoch(model, train_loader, optimizer, device)
        seconds = time.perf_counter() - started
        score = validate(model, valid_loader, device)
        print(epoch_line(epoch, loss, score, seconds), flush=True)
        if score > best:
            best = score
            torch.save(model.state_dict(), out / "best_model.pth")
    return score


def parse_arguments(arguments: list[str] | None = None) -> tuple[Settings, Path, Path | None, torch.device]:
    """Yield settings, data folder (made if it is the default and missing), output folder and device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=tuple(data.SIZES), default="small")
    for name in ("epochs", "batch-size", "hidden", "layers", "workers", "seed"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, help="folder made by data.py (default: its cache)")
    parser.add_argument("--out", type=Path, help="folder for the model (default: a temporary one)")
    chosen = vars(parser.parse_args(arguments))
    names = {field.name for field in fields(Settings)}
    given = {name: value for name, value in chosen.items() if name in names and value is not None}
    settings = replace(defaults(chosen["size"]), **given)
    folder = chosen["data"] or data.ensure(settings.size, settings.seed)
    return settings, folder, chosen["out"], torch.device(chosen["device"])


@contextlib.contextmanager
def output_folder(out: Path | None) -> Iterator[Path]:
    """Yield `out`, made if missing, or a temporary folder that is removed afterwards."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out
    else:
        with tempfile.TemporaryDirectory(prefix="bloom-") as temporary:
            yield Path(temporary)


def samples_line(train: int, valid: int) -> str:
    """Return a line with how many samples an epoch trains on and how many score it."""
    return f"train {train} samples  valid {valid} samples"


def epoch_line(epoch: int, loss: float, metric: float, seconds: float) -> str:
    return f"epoch {epoch}  loss {loss:.5f}  {METRIC} {metric:.4f}  seconds {seconds:.6g}"


def final_line(metric: float, settings: Settings) -> str:
    target = TARGETS[settings.size]
    outcome = "reached" if metric >= target else "missed"
    return f"final {METRIC} {metric:.4f} target {target:.4f} {outcome}"


def main(arguments: list[str] | None = None) -> int:
    settings, folder, out, device = parse_arguments(arguments)
    with output_folder(out) as where:
        print(final_line(train(settings, folder, where, device), settings), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
