"""What a DataLoader handed to the engine costs over the same loop by hand, or gains where its rows can be kept.

`python benchmarks/engine/engine_loader.py [--rounds 8] [--out FILE]`; with `--samples FILE` that of an earlier run

Both train the same CNN with the same fused AdamW on the CPU, in one thread of one process, by turns. A sample is an
epoch from its predecessor's end to its own, so the first of each training is left out; on a shared machine the seconds
that the process computed say more than those on the wall. Rows are either augmented, so that the loader must fetch them
each time, or plain, so that the engine may keep them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from hotlap.bench.surroundings import look
from hotlap.engine import Callback, Recipe, Trainer, Training

ROWS, BATCH, EPOCHS = 2048, 64, 4
LIMIT = 1.05


class Images(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, augmented: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.rand(ROWS, 1, 28, 28, generator=generator)
        self.labels = torch.randint(10, (ROWS,), generator=generator).tolist()
        self.augmented = augmented

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index]
        if self.augmented and random.random() < 0.5:
            image = image.flip(-1)
        return image, self.labels[index]


def parts(augmented: bool) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[tuple[torch.Tensor, int]]]:
    torch.manual_seed(0)
    first, second = nn.Conv2d(1, 8, 3, stride=2), nn.Conv2d(8, 16, 3, stride=2)
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(576, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return model, optimizer, DataLoader(Images(augmented), batch_size=BATCH, shuffle=True)


class Clock(Callback):
    """Marks the ends of epochs, on the wall and by what the process computed."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def epoch(self, training: Training | None = None, record: object = None) -> None:
        self.marks.append((time.perf_counter(), time.process_time()))

    def epochs(self) -> list[dict[str, float]]:
        """Return the seconds of each epoch but the first."""
        pairs = zip(self.marks, self.marks[1:], strict=False)
        return [{"wall": after[0] - before[0], "cpu": after[1] - before[1]} for before, after in pairs]


def by_hand(augmented: bool) -> list[dict[str, float]]:
    model, optimizer, loader = parts(augmented)
    clock = Clock()
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        clock.epoch()
    return clock.epochs()


def by_the_engine(augmented: bool) -> list[dict[str, float]]:
    model, optimizer, loader = parts(augmented)
    clock = Clock()
    recipe = Recipe(batch_size=BATCH, precision="fp32", compile="off", onednn="on", threads=1)
    options = {"say": lambda line: None, "progress": None, "device": "cpu", "callbacks": [clock]}
    trainer = Trainer(model, nn.functional.cross_entropy, optimizer, recipe, **options)  # type: ignore[arg-type]
    trainer.fit(loader, epochs=EPOCHS)
    return clock.epochs()


ARMS = {"by hand": by_hand, "engine": by_the_engine}


def ratio(samples: list[dict[str, Any]], rounds: list[int], augmented: bool, kind: str) -> float:
    """Return the median epoch of the engine over that by hand, of these rounds."""

    def median_of(arm: str) -> float:
        epochs = [
            epoch[kind]
            for number in rounds
            for entry in samples
            if (entry["round"], entry["arm"], entry["augmented"]) == (number, arm, augmented)
            for epoch in entry["epochs"]
        ]
        return statistics.median(epochs)

    return median_of("engine") / median_of("by hand")


def figures(samples: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the ratio of each kind, with its interval of 95 % by drawing rounds again with replacement."""
    rounds, drawn, found = sorted({entry["round"] for entry in samples}), random.Random(0), {}
    for augmented in (True, False):
        for kind in ("cpu", "wall"):
            many = sorted(ratio(samples, drawn.choices(rounds, k=len(rounds)), augmented, kind) for _ in range(1000))
            name = f"{'augmented' if augmented else 'plain'} rows, {kind} time"
            found[name] = {"ratio": ratio(samples, rounds, augmented, kind), "interval": [many[25], many[974]]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--samples", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.samples is not None:
        content = json.loads(options.samples.read_text(encoding="utf-8"))
        say(content["samples"], content, options.out)
        return
    here, _ = look("cpu")
    samples: list[dict[str, Any]] = []
    for number in range(options.rounds):
        for augmented in (True, False):
            for arm in list(ARMS) if number % 2 else list(ARMS)[::-1]:
                epochs = ARMS[arm](augmented)
                samples.append({"round": number, "augmented": augmented, "arm": arm, "epochs": epochs})
    content = {
        "schema": 1,
        "benchmark": "engine-loader",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": f"python benchmarks/engine/engine_loader.py --rounds {options.rounds}",
        "machine": asdict(here.machine),
        "versions": dict(here.versions),
        "limit": LIMIT,
        "samples": samples,
    }
    say(samples, content, options.out)


def say(samples: list[dict[str, Any]], content: dict[str, Any], out: Path | None) -> None:
    found = figures(samples)
    for name, figure in found.items():
        low, high = figure["interval"]
        print(f"{name}: an epoch of the engine takes {figure['ratio']:.3f} ({low:.3f} to {high:.3f}) of that by hand")
    if out is not None:
        content = {**content, "time_of_the_engine_over_by_hand": found}
        out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
