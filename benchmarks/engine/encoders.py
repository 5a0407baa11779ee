"""Measure how fast the encoders are.

`python benchmarks/engine/encoders.py [--rows 100000] [--part bits|two_grams] [--out FILE]`

Strings of 1024 bits, and the two-grams of a given name, a surname and a birth date over 1296 known ones, as the Bloom
report has them; as pandas columns, and as the byte arrays an HDF5 file gives. Beside them the way of that report: a
Python function for every row through `apply`. The results must be equal, number by number. The slow way runs once, the
encoders `ROUNDS` times, every time kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import string
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import hotlap
from hotlap.engine.data import bits, ngrams

ROUNDS = 5
BITS = 1024
ALPHABET = string.ascii_lowercase + string.digits
TWO_GRAMS = ["".join(pair) for pair in itertools.product(ALPHABET, repeat=2)]
COLUMNS = ("given_name", "surname", "birth_date")


def people(rows: int) -> dict[str, np.ndarray]:
    """Return columns of bytes; the bits are random, since the speed does not depend on which are set."""
    random = np.random.default_rng(0)
    letters = random.integers(ord("a"), ord("z") + 1, (rows, 24), dtype=np.uint8)
    lengths = random.integers(3, 13, (rows, 2))
    for column in (0, 1):
        part = letters[:, column * 12 : column * 12 + 12]
        part[np.arange(12) >= lengths[:, column : column + 1]] = 0
    names = [np.ascontiguousarray(letters[:, start : start + 12]).view("S12").reshape(-1) for start in (0, 12)]
    dates = random.integers(ord("0"), ord("9") + 1, (rows, 8), dtype=np.uint8).view("S8").reshape(-1)
    filters = (random.random((rows, BITS), dtype=np.float32) < 0.2).astype(np.uint8) + ord("0")
    return dict(zip(COLUMNS, (*names, dates), strict=True)) | {"bloomfilter": filters.view(f"S{BITS}").reshape(-1)}


def frame_of(columns: dict[str, np.ndarray]) -> pd.DataFrame:
    return pd.DataFrame({name: [value.decode() for value in values.tolist()] for name, values in columns.items()})


def bits_by_apply(series: pd.Series) -> Tensor:
    return torch.stack(
        series.apply(lambda text: torch.tensor([int(bit) for bit in text], dtype=torch.float32)).tolist()
    )


def extract_two_grams(text: str) -> set[str]:
    return {text[start : start + 2] for start in range(len(text) - 1)}


def label_to_tensor(two_grams: set[str]) -> Tensor:
    return torch.tensor([1.0 if two_gram in two_grams else 0.0 for two_gram in TWO_GRAMS])


def grams_by_apply(frame: pd.DataFrame) -> Tensor:
    text = frame.astype(str).apply("".join, axis=1)
    return torch.stack(text.apply(extract_two_grams).apply(label_to_tensor).tolist())


def seconds_of(run: Callable[[], Tensor]) -> tuple[float, Tensor]:
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def compared(slow: Callable[[], Tensor], ways: dict[str, Callable[[], Tensor]]) -> dict[str, Any]:
    """Time the slow way and each fast one, and compare their numbers."""
    slow_seconds, expected = seconds_of(slow)
    rows: dict[str, Any] = {"apply_seconds": slow_seconds, "ways": {}}
    for name, way in ways.items():
        times, equal = [], True
        for _ in range(ROUNDS):
            seconds, result = seconds_of(way)
            times.append(seconds)
            equal = equal and torch.equal(result.float(), expected)
        faster = slow_seconds / statistics.median(times)
        rows["ways"][name] = {"seconds": times, "equal": equal, "times_faster": faster}
        print(
            f"  {name}: {statistics.median(times):.4f} s, {faster:.0f}x, {'equal' if equal else 'DIFFERENT'}",
            flush=True,
        )
    return rows


def measured_bits(columns: dict[str, np.ndarray], frame: pd.DataFrame) -> dict[str, Any]:
    series, raw = frame["bloomfilter"], columns["bloomfilter"]
    return compared(
        lambda: bits_by_apply(series),
        {
            "pandas to float32": lambda: bits(series, torch.float32),
            "pandas to bool": lambda: bits(series),
            "bytes to float32": lambda: bits(raw, torch.float32),
            "bytes to bool": lambda: bits(raw),
        },
    )


def measured_two_grams(columns: dict[str, np.ndarray], frame: pd.DataFrame) -> dict[str, Any]:
    texts = frame[list(COLUMNS)]
    series, raw = tuple(frame[name] for name in COLUMNS), tuple(columns[name] for name in COLUMNS)
    return compared(
        lambda: grams_by_apply(texts),
        {
            "pandas to float32": lambda: ngrams(series, TWO_GRAMS, dtype=torch.float32),
            "pandas to bool": lambda: ngrams(series, TWO_GRAMS),
            "bytes to float32": lambda: ngrams(raw, TWO_GRAMS, dtype=torch.float32),
            "bytes to bool": lambda: ngrams(raw, TWO_GRAMS),
        },
    )


PARTS = {"bits": measured_bits, "two_grams": measured_two_grams}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--part", choices=tuple(PARTS), help="measure only this; the other is taken from the file")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    columns = people(arguments.rows)
    frame = frame_of(columns)
    parts = {name: part(columns, frame) for name, part in PARTS.items() if arguments.part in (None, name)}
    known = json.loads(arguments.out.read_text()) if arguments.part and arguments.out and arguments.out.exists() else {}
    if known.get("rows") == arguments.rows:
        parts = {name: known[name] for name in PARTS if name in known} | parts
    record = {
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "hotlap": hotlap.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pandas": pd.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "rows": arguments.rows,
        **parts,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
