"""A table trained by hotlap.engine: a folder of CSV files, early stopping, a run that goes on, a file for serving.

python examples/engine_table.py FOLDER
torchrun --nproc-per-node 2 examples/engine_table.py FOLDER
"""

import argparse
import csv
import random
from pathlib import Path

import torch
from torch import nn

from hotlap.engine import Accuracy, Checkpoints, Cosine, Recipe, Trainer
from hotlap.engine.data import Folder, resident, split

FEATURES = ("age", "balance", "visits", "distance")


def write_customers(folder, files=4, rows=500):
    """Make customers who leave if they come rarely and from far away."""
    folder.mkdir(parents=True)
    drawn = random.Random(0)
    for number in range(files):
        with (folder / f"{number}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["name", *FEATURES, "leaves"])
            for row in range(rows):
                values = [drawn.gauss(0, 1) for _ in FEATURES]
                table.writerow([f"customer {row}", *values, int(values[3] - values[2] + drawn.gauss(0, 0.3) > 0)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the tables and the results are")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    tables = options.folder / "tables"
    if not tables.exists():
        write_customers(tables)
    train, valid = split(
        resident(Folder(tables, FEATURES, "leaves"), device="cpu", dtypes=[torch.float32, None]), 0.8, seed=0
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(len(FEATURES), 32), nn.ReLU(), nn.Linear(32, 2))
    trainer = Trainer(
        model,
        nn.functional.cross_entropy,
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        Recipe(batch_size=64, schedule=Cosine(), patience=5, checkpoints=Checkpoints(options.folder / "run")),
        metrics={"accuracy": Accuracy()},
        distributed="ddp",  # where torchrun started several processes; one alone trains as without it
        device="cpu",
    )
    history = trainer.fit(train, valid, epochs=options.epochs, resume="auto")
    if trainer.is_first:
        scores = trainer.export(options.folder / "customers.pt2", valid)
        print(f"accuracy {history.last.scores['accuracy']:.3f}, exported {scores['accuracy']:.3f}")


if __name__ == "__main__":
    main()
