"""An LSTM on windows of CSV files, trained by hotlap.engine: each file is a series, and no window spans two of them.

python examples/engine_series.py FOLDER
"""

import argparse
import csv
import math
import random
from pathlib import Path

import torch
from torch import nn

from hotlap.engine import RMSE, Checkpoints, Cosine, Recipe, Trainer
from hotlap.engine.data import Csv, Windows, load_all

FEATURES = ("voltage", "current", "temperature")
LOOKBACK = 30


def write_cells(folder, cells=6, rows=600):
    """Make cells whose charge follows from the current so far."""
    folder.mkdir(parents=True)
    drawn = random.Random(0)
    for number in range(cells):
        speed, charge = drawn.uniform(0.8, 1.2), 0.5
        with (folder / f"cell-{number}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*FEATURES, "charge"])
            for row in range(rows):
                current = math.sin(speed * row / 20)
                charge += current / 40
                noise = drawn.gauss(0, 0.01)
                table.writerow([3.2 + charge + 0.1 * current + noise, current, 25 + current**2 + noise, charge])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(len(FEATURES), 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, windows):
        states, _ = self.lstm(windows)
        return self.head(states[:, -1])


def windows(files, mean, deviation):
    """Return windows over the files, each column scaled, with the charge at the last row of each."""
    series, charges = zip(*(load_all(Csv(file, FEATURES, "charge")) for file in files), strict=True)
    scaled = [(torch.as_tensor(values).float() - mean) / deviation for values in series]
    return Windows(scaled, LOOKBACK, [torch.as_tensor(values).float() for values in charges])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the series and the results are")
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()
    tables = options.folder / "cells"
    if not tables.exists():
        write_cells(tables)
    files = sorted(tables.glob("*.csv"))
    known = torch.cat([torch.as_tensor(load_all(Csv(file, FEATURES, "charge"))[0]).float() for file in files[:-1]])
    scale = known.mean(0), known.std(0)
    torch.manual_seed(0)
    model = Net()
    trainer = Trainer(
        model,
        nn.functional.mse_loss,
        torch.optim.AdamW(model.parameters(), lr=5e-3),
        Recipe(batch_size=64, clip=0.5, schedule=Cosine(), checkpoints=Checkpoints(options.folder / "run")),
        metrics={"rmse": RMSE()},
    )
    history = trainer.fit(windows(files[:-1], *scale), windows(files[-1:], *scale), options.epochs, resume="auto")
    print(f"rmse {history.last.scores['rmse']:.4f}")


if __name__ == "__main__":
    main()
