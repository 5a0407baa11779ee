"""Which settings are fastest for Lightning and Accelerate: the table at the top of workloads/peer.py comes from this.

`python benchmarks/training/peer_settings.py --device cuda --size report --epochs 4 --workers 4,8,14 --out FILE`

Every combination trains in a fresh process. The first epoch holds compilation, autotuning and the start of the
workers; the table shows it apart from the median of the others. The file holds every epoch as it was printed.
With `--at-once 2` two combinations that stand one after the other (the two precisions of a workload, say) train at the
same time: each then has less of the machine, and both the same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
FRAMEWORKS = ("lightning", "accelerate")
ALL = ("battery_lstm", "battery_fnn", "bloom", "banknotes", "leak")


@dataclass(frozen=True)
class Combination:
    workload: str
    framework: str
    precision: str
    compile: bool
    workers: int


@dataclass(frozen=True)
class Result:
    combination: Combination
    samples: int = 0
    epoch_seconds: list[float] = field(default_factory=list)
    error: str | None = None  # the last line it wrote, where it failed

    @property
    def samples_per_second(self) -> float | None:
        """Samples per second of the median epoch, without the first unless it is the only one."""
        seconds = self.epoch_seconds[1:] or self.epoch_seconds
        return self.samples / statistics.median(seconds) if seconds else None


def combinations(options: argparse.Namespace) -> list[Combination]:
    lists = (options.workloads, options.frameworks, options.precision, options.compile, options.workers)
    return [
        Combination(workload, framework, precision, compiled == "yes", int(workers))
        for workload, framework, precision, compiled, workers in itertools.product(*lists)
    ]


def command(combination: Combination, options: argparse.Namespace, out: str) -> list[str]:
    return [
        sys.executable,
        str(WORKLOADS / f"peer_{combination.framework}.py"),
        combination.workload,
        *("--size", options.size, "--epochs", str(options.epochs), "--device", options.device, "--out", out),
        *("--precision", combination.precision, "--workers", str(combination.workers)),
        "--compile" if combination.compile else "--no-compile",
    ]


def measure(combination: Combination, options: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory() as out:
        line = command(combination, options, out)
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=options.timeout, check=False)
        except subprocess.TimeoutExpired:
            return Result(combination, error=f"not done after {options.timeout} s; allow more with --timeout")
    if done.returncode:
        return Result(combination, error=(done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    samples = re.search(r"^train (\d+) samples", done.stdout, re.MULTILINE)
    seconds = re.findall(r"^epoch .* seconds (\S+)$", done.stdout, re.MULTILINE)
    if samples is None or not seconds:
        return Result(combination, error="printed no epoch")
    return Result(combination, int(samples[1]), [float(value) for value in seconds])


def row(result: Result) -> str:
    tried = result.combination
    settings = f"{tried.precision:>5} {'yes' if tried.compile else 'no':>8} {tried.workers:>8}"
    speed = result.samples_per_second
    if speed is None:
        return f"{tried.workload:13} {tried.framework:11} {settings}  {result.error}"
    return f"{tried.workload:13} {tried.framework:11} {settings} {result.epoch_seconds[0]:>12.4g} {speed:>12.6g}"


HEADING = (
    f"{'workload':13} {'framework':11} {'bits':>5} {'compile':>8} {'workers':>8} {'first epoch':>12} {'samples/s':>12}"
)


def fastest(results: list[Result]) -> list[str]:
    """Return the best line of each workload and framework."""
    best: dict[tuple[str, str], Result] = {}
    for result in results:
        key = (result.combination.workload, result.combination.framework)
        if (result.samples_per_second or 0) > (best[key].samples_per_second or 0 if key in best else 0):
            best[key] = result
    return [row(result) for result in best.values()]


def surroundings(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "benchmark": "peer settings",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if options.device == "cuda" else None,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "size": options.size,
        "device": options.device,
        "at_once": options.at_once,
    }


def write(path: Path, options: argparse.Namespace, results: list[Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**surroundings(options), "results": [asdict(result) for result in results]}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def names(allowed: tuple[str, ...] | None = None) -> Any:
    """Parse a comma-separated list of `allowed` names."""

    def read(text: str) -> list[str]:
        chosen = text.split(",")
        if allowed and (unknown := sorted(set(chosen) - set(allowed))):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: use some of {','.join(allowed)}")
        return chosen

    return read


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=names(ALL), default=list(ALL))
    parser.add_argument("--frameworks", type=names(FRAMEWORKS), default=list(FRAMEWORKS))
    parser.add_argument("--precision", type=names(("32", "bf16")), default=["32", "bf16"])
    parser.add_argument("--compile", type=names(("no", "yes")), default=["no", "yes"])
    parser.add_argument("--workers", type=names(), default=[str(max(1, (os.cpu_count() or 1) - 2))])
    parser.add_argument("--size", default="small", choices=["tiny", "small", "report"])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one combination")
    parser.add_argument("--at-once", type=int, default=1, help="combinations that train at the same time")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    results: list[Result] = []
    print(HEADING, flush=True)
    with ThreadPoolExecutor(options.at_once) as pool:
        for result in pool.map(lambda combination: measure(combination, options), combinations(options)):
            results.append(result)
            print(row(result), flush=True)
            if options.out:
                write(options.out, options, results)  # after each: a stop loses only those in flight
    print("\nfastest:", *fastest(results), sep="\n")


if __name__ == "__main__":
    main()
