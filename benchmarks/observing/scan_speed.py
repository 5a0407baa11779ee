"""How fast `hotlap scan` is. `python benchmarks/observing/scan_speed.py [--out FILE] [--rounds N]`

Trees of about 25,000, 50,000 and 100,000 lines are made of the sources of installed packages (transformers first:
nearly every file of it runs every batch, which is the slowest case), and scanned on one core and on all, without the
cache, in a process that has started already. One core is given in processor time, which other load disturbs less. Then
the same by the command, start and all, without and with the cache; and how long `hotlap --help` takes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import hotlap
from hotlap.analysis.parse import files
from hotlap.scanning import FindingFilter, scan

SIZES = (25_000, 50_000, 100_000)
PACKAGES = ("transformers", "lightning", "accelerate", "torch")
ROUNDS = 3
HELPS = 5


def sources() -> Iterator[Path]:
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            yield from sorted(Path(spec.submodule_search_locations[0]).rglob("*.py"))


def make_tree(folder: Path, lines: int) -> int:
    """Copy files of whole packages in the order of their names, until there are enough lines."""
    made = 0
    for path in sources():
        package = next(part for part in PACKAGES if part in path.parts)
        target = folder / Path(*path.parts[path.parts.index(package) :])
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        made += path.read_bytes().count(b"\n")
        if made >= lines:
            break
    return made


def in_process(folder: Path, cores: int, rounds: int) -> dict[str, Any]:
    """Return seconds by the clock and of processor time, which is disturbed less by what else the machine does."""
    found, clock, processor = 0, [], []
    for _ in range(rounds):
        listed, _ = files.discover([str(folder)])
        started, before = time.perf_counter(), time.process_time()
        found = len(scan(listed, FindingFilter(), cores=cores).findings)
        clock.append(time.perf_counter() - started)
        processor.append(time.process_time() - before)
    return {"seconds": clock, "processor_seconds": processor, "findings": found}


def seconds_of_command(folder: Path, *options: str) -> float:
    command = [sys.executable, "-m", "hotlap", "scan", ".", "--statistics", *options]
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - started


def seconds_of_help() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "hotlap", "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def measured(lines: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        made = make_tree(folder, lines)
        result = {
            "lines": made,
            "one_core": in_process(folder, 1, rounds),
            "all_cores": in_process(folder, len(os.sched_getaffinity(0)), rounds),
            "load": os.getloadavg(),
            "command_seconds": seconds_of_command(folder, "--no-cache"),
        }
        seconds_of_command(folder)
        return {**result, "command_cached_seconds": seconds_of_command(folder)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    FindingFilter().rules()  # reading them belongs to the start
    rows = []
    for lines in SIZES:
        row = measured(lines, arguments.rounds)
        rows.append(row)
        alone = row["lines"] / statistics.median(row["one_core"]["processor_seconds"])
        every = row["lines"] / statistics.median(row["all_cores"]["seconds"])
        print(
            f"{row['lines']:7} lines  one core {alone:7.0f} lines/s of processor time  all cores {every:7.0f} lines/s  "
            f"command {row['command_seconds']:.2f} s, unchanged {row['command_cached_seconds']:.2f} s",
            flush=True,
        )
    helps = [seconds_of_help() for _ in range(HELPS)]
    print(f"hotlap --help {statistics.median(helps):.2f} s")
    record = {
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"), "hotlap": hotlap.__version__,
        "python": platform.python_version(), "machine": platform.machine(), "cores": len(os.sched_getaffinity(0)),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES[:1]}, "rows": rows,
        "help_seconds": helps,
    }  # fmt: skip
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
