"""Whether the engine's cost grows in proportion to the data. `python benchmarks/engine/engine_linear.py [--out FILE]`

Each case runs in a process of its own with some rows, and with ten times as many: seconds and memory a row must not be
more than 10 % higher. Seconds are processor time of the part measured, which other load disturbs less, the best of
`ROUNDS`; memory is the peak of the process beyond what it had before its data was made, the pages of mapped files
with it. The fewer rows are already more than the processor's caches hold.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import hotlap
from hotlap.engine.data import Arrays, Cache, Stream, Tensors, Windows, bits, ngrams
from hotlap.engine.recipe import Recipe
from hotlap.engine.trainer import Trainer

ROUNDS = 3
TIMES = 10
ALLOWED = 1.10
CPU = torch.device("cpu")

Work = Callable[[], object]


def training(rows: int, folder: Path) -> Work:
    """Train an epoch of a small network on resident rows."""
    data = Tensors(torch.rand(rows, 64), torch.rand(rows, 1))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return lambda: epoch(model, data)


def epoch(model: nn.Module, data: Any) -> object:
    recipe = Recipe(batch_size=2048, compile="off", onednn="on", threads=1)  # no trials: they are a fixed cost
    optimizer = torch.optim.Adam(model.parameters())
    return Trainer(model, nn.functional.mse_loss, optimizer, recipe, device=CPU, say=str).fit(data, epochs=1)


def windows(rows: int, folder: Path) -> Work:
    """Train an epoch of a small network on windows of 8 rows of a series."""
    data = Windows([torch.rand(rows, 16)], 8, [torch.rand(rows)])
    model = nn.Sequential(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))
    return lambda: epoch(model, data)


def streaming(rows: int, folder: Path) -> Work:
    """Read a memory-mapped file in a shuffled order."""
    values = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, 64))
    for start in range(0, rows, 10_000):
        values[start : start + 10_000] = 1.0
    values.flush()
    del values
    stream = Stream(Arrays(folder / "x.npy"), threads=1, ahead=4)

    def work() -> object:
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
        return sum(len(batch[0]) for batch in stream.batches(order, 2048, CPU))

    return work


def bit_strings(rows: int, folder: Path) -> Work:
    texts = np.full(rows, b"01" * 512, dtype="S1024")
    return lambda: bits(texts)


def two_grams(rows: int, folder: Path) -> Work:
    texts = np.array([b"maria", b"schneider", b"alexander"] * (rows // 3 + 1), dtype="S12")[:rows]
    vocabulary = [first + second for first in "abcdefghijklmnopqrstuvwxyz" for second in "abcdefghijklmnopqrstuvwxyz"]
    return lambda: ngrams(texts, vocabulary)


def caching(rows: int, folder: Path) -> Work:
    """Make a cache entry, write it, check it and read it back."""
    numbers = iter(range(1000))

    def made(number: int, rows: int) -> dict[str, np.ndarray]:
        return {"x": np.full((rows, 64), number, dtype=np.float32)}

    def work() -> object:
        cache = Cache(folder, limit_bytes=0)
        return cache.arrays(made, arguments={"number": next(numbers), "rows": rows})["x"].sum()

    return work


CASES: dict[str, tuple[Callable[[int, Path], Work], int]] = {
    "training on resident rows": (training, 100_000),
    "training on windows": (windows, 200_000),
    "rows streamed": (streaming, 150_000),
    "bit strings encoded": (bit_strings, 80_000),
    "two-grams encoded": (two_grams, 100_000),
    "arrays cached": (caching, 100_000),
}


def peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def run_case(name: str, rows: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    make, _ = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        make(2500, Path(folder))()  # what is imported and allocated once
        before = peak()
        work = make(rows, Path(folder))
        seconds = []
        for _ in range(ROUNDS):
            started = time.process_time()
            work()
            seconds.append(time.process_time() - started)
    return {"rows": rows, "processor_seconds": seconds, "memory_bytes": peak() - before}


def in_a_process(name: str, rows: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", name, "--rows", str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} with {rows} rows failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def compared(name: str) -> dict[str, Any]:
    rows = CASES[name][1]
    few, many = in_a_process(name, rows), in_a_process(name, TIMES * rows)
    time_ratio = min(many["processor_seconds"]) / min(few["processor_seconds"]) / TIMES
    memory_ratio = many["memory_bytes"] / max(few["memory_bytes"], 1) / TIMES
    good = time_ratio <= ALLOWED and memory_ratio <= ALLOWED
    print(
        f"{name:28} a row, {TIMES}x the rows: time x{time_ratio:.3f}  memory x{memory_ratio:.3f}  "
        f"{'linear' if good else 'NOT LINEAR'}",
        flush=True,
    )
    return {"few": few, "many": many, "time_a_row": time_ratio, "memory_a_row": memory_ratio, "linear": good}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", choices=tuple(CASES), help="run this one here, and print what it took")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument(
        "--only", nargs="+", choices=tuple(CASES), help="measure only these; the others are taken from the file"
    )
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run_case(arguments.case, arguments.rows)))
        return
    earlier = json.loads(arguments.out.read_text())["cases"] if arguments.only and arguments.out.exists() else {}
    cases = earlier | {name: compared(name) for name in arguments.only or CASES}
    record = {
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "hotlap": hotlap.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "allowed": ALLOWED,
        "cases": cases,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if all(case["linear"] for case in cases.values()) else 1)


if __name__ == "__main__":
    main()
