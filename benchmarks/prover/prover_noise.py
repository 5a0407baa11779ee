"""Step times of real processes, to try the judge on: `python benchmarks/prover/prover_noise.py --out FILE`.

Every process is fresh, as in a tune, and trains the same small loop; kept are the microseconds of every step after
warm-up, in the order the processes ran. What else the machine does meanwhile is part of the noise; a process that was
stopped from outside for seconds is not, and is run again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

WARM = 20
BATCH = 64
STOPPED_US = 2_000_000


def steps_of_one_process(steps: int) -> list[int]:
    """Microseconds of every step of a usual loop: loader, forward, backward, optimizer, one `.item()`."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(BATCH * (steps + WARM), 128), torch.randn(BATCH * (steps + WARM), 1))
    took, total, began = [], 0.0, time.perf_counter()
    for inputs, targets in DataLoader(data, BATCH, shuffle=True):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        ended = time.perf_counter()
        took.append(round(1e6 * (ended - began)))
        began = ended
    return took[WARM:]


def record(processes: int, steps: int) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--one", "--steps", str(steps)]
    loads: list[float] = []
    times: list[list[int]] = []
    stopped = 0
    while len(times) < processes:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        if max(found) > STOPPED_US:
            stopped += 1
            continue
        times.append(found)
        loads.append(round(os.getloadavg()[0], 2))
        print(f"process {len(times)} of {processes}", end="\r", file=sys.stderr, flush=True)
    return {
        "batch": BATCH, "warmup_steps_left_out": WARM, "run_again_because_stopped": stopped, "load_average": loads,
        "step_us": times,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=96)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(steps_of_one_process(options.steps)))
        return
    if options.out is None:
        parser.error("where should the step times go? add --out FILE")
    result = {
        "benchmark": "step-noise",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        **record(options.processes, options.steps),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    import torch

    from hotlap.machine import usable_cores
    from hotlap.observe.surroundings import cpu_name

    return {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.release()}",
    }


if __name__ == "__main__":
    main()
