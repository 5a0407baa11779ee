"""Getting the data of the Bloom workload ready to train on: naive.py's way against fast.py with a warm cache.

`python benchmarks/engine/engine_start.py [--size small] [--device cuda] [--rounds 5] [--out FILE]`

Each sample is a process of its own, naive and engine by turns. Timed is the load alone, from files that the system has
just read to tensors on the host (naive) or on the device (engine); `started_seconds` counts from the start of the
process, imports included. Before them fast.py fills an empty cache once, which is kept as `cold`. Both must give the
same bits and two-grams. An existing `--out` of an earlier run is continued.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from engine_arms import FAST, SLOW, Record, by_turns, data_folder, in_a_process, modules_of

WORKLOAD = "bloom"


def loaded_naively(folder: Path, size: str) -> tuple[float, list[Any]]:
    with modules_of(WORKLOAD):
        import naive
    import torch

    began = time.perf_counter()
    parts = naive.build_datasets(folder, naive.defaults(size))
    seconds = time.perf_counter() - began
    return seconds, [torch.stack(column) for part in parts for column in (part.bit_tensors, part.label_tensors)]


def loaded_by_the_engine(folder: Path, device: str) -> tuple[float, list[Any]]:
    with modules_of(WORKLOAD):
        import fast
    import torch

    torch.zeros(1, device=device)  # a CUDA context is needed in either way
    began = time.perf_counter()
    parts = fast.build_sources(folder, torch.device(device))
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return seconds, [column for part in parts for column in part.tensors]


def digest(columns: list[Any]) -> str:
    found = hashlib.sha256()
    for column in columns:
        found.update(column.cpu().to(dtype=column.cpu().bool().dtype).numpy().tobytes())
    return found.hexdigest()[:16]


def sample(arm: str, folder: Path, size: str, device: str, began: float) -> dict[str, Any]:
    seconds, columns = loaded_naively(folder, size) if arm == SLOW else loaded_by_the_engine(folder, device)
    started = time.monotonic() - began
    return {"arm": arm, "seconds": [seconds], "started_seconds": started, "result": digest(columns)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("tiny", "small", "report"), default="small")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    for name in ("--arm", "--folder", "--began"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        folder = Path(arguments.folder)
        print(json.dumps(sample(arguments.arm, folder, arguments.size, arguments.device, float(arguments.began))))
        return
    record = Record(arguments.out, "engine-start", arguments.size, arguments.device)
    folder = data_folder(WORKLOAD, arguments.size)
    words = ["--size", arguments.size, "--device", record.device, "--folder", str(folder)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "HOTLAP_DATA": cache}
        record.content["cold"] = in_a_process(__file__, ["--arm", FAST, *words], environment)
        for number, arm in by_turns(record.rounds(arguments.rounds)):
            record.add({"round": number, **in_a_process(__file__, ["--arm", arm, *words], environment)})
    print(record.summary_line(), flush=True)


if __name__ == "__main__":
    main()
