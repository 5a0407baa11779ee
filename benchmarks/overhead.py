"""What observing costs a training step. `python benchmarks/overhead.py [--device cuda] [--out FILE]`

Observed and unobserved blocks of steps alternate in one process (A B B A …), so that drift hits both alike. The step is
made to last about 5 ms and holds what a usual loop does: a DataLoader batch, two copies, forward, loss, backward,
optimizer step and one `.item()`. Reported: the paired difference per step with a 95 % bootstrap interval, in µs and
as a share of the step.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import timeit
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hotlap
from hotlap.model.session import Session
from hotlap.observe import agent as observing
from hotlap.observe.surroundings import cpu_name, usable_cores
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams

TARGET_MS = 5.0
WARM = 8  # steps at the head of each block that are not counted: the agent warms up in them


class Loop:
    """A usual training loop whose step lasts as long as asked."""

    def __init__(self, device: str, width: int, depth: int, sync: bool) -> None:
        torch.manual_seed(0)
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        self.model = nn.Sequential(*layers, nn.Linear(width, 1)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        data = TensorDataset(torch.randn(4096, width), torch.randn(4096, 1))
        self.loader = DataLoader(data, batch_size=16, shuffle=True)
        self.device, self.sync, self.total = device, sync, 0.0
        self._batches = iter(())

    def step(self) -> None:
        inputs, targets = self._next()
        inputs, targets = inputs.to(self.device), targets.to(self.device)
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.sync:
            self.total += loss.item()

    def _next(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            self._batches = iter(self.loader)
            return next(self._batches)


def seconds_per_step(loop: Loop, steps: int) -> float:
    """The median step of a block. On CUDA the queue is emptied around it: the benchmark's own sync, not hotlap's."""
    for _ in range(WARM):
        loop.step()
    settle(loop.device)
    took = []
    for _ in range(steps):
        began = time.perf_counter()
        loop.step()
        took.append(time.perf_counter() - began)
    settle(loop.device)
    return statistics.median(took)  # each step ends with .item(), so each is whole; a median shrugs off others


def settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def observed(loop: Loop, steps: int, folder: str) -> tuple[float, float]:
    """The same block with the agent measuring all of it; and the seconds a step that reading the tape takes later."""
    session = Session(
        schema=1, folder=folder, agent="", steps=10**9, warmup=2, max_seconds=1e9, full=True, ceiling=False,
        trace=False, started=time.time(),
    )  # fmt: skip
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    agent = observing.Agent(torch, session, seams)
    agent.subscribe()
    try:
        took = seconds_per_step(loop, steps)
        began = time.perf_counter()
        agent._catch_up()
        reading = (time.perf_counter() - began) / steps
        assert agent.state == observing.TIMING, "the agent was not measuring"
        assert agent.tally.steps >= steps, "steps were missed"
        return took, reading
    finally:
        seams.close()


def choose_width(device: str, depth: int) -> int:
    """The width whose step comes closest to the target."""
    best, distance = 0, float("inf")
    for width in (16, 32, 64, 96, 128, 160, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096):
        took = 1000 * seconds_per_step(Loop(device, width, depth, sync=True), 20)
        if abs(took - TARGET_MS) < distance:
            best, distance = width, abs(took - TARGET_MS)
        if took > 2 * TARGET_MS:
            break
    return best


def interval(differences: list[float]) -> tuple[float, float]:
    """95 % of the median of the paired differences, by bootstrap."""
    random = np.random.default_rng(0)
    draws = random.choice(np.array(differences), (5000, len(differences)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(low), float(high)


def measure(device: str, depth: int, rounds: int, steps: int) -> dict[str, Any]:
    width = choose_width(device, depth)
    loop = Loop(device, width, depth, sync=True)
    pairs: list[tuple[float, float]] = []
    readings: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            first_observed = number % 2 == 0
            times: dict[bool, float] = {}
            for watching in (first_observed, not first_observed):
                if watching:
                    times[True], reading = observed(loop, steps, folder)
                    readings.append(reading)
                else:
                    times[False] = seconds_per_step(loop, steps)
            pairs.append((times[False], times[True]))
    model = f"{depth} × Linear({width}), batch 16, {2 * depth + 1} modules"
    return summary(device, model, steps, pairs, readings)


def summary(
    device: str, model: str, steps: int, pairs: list[tuple[float, float]], readings: list[float]
) -> dict[str, Any]:
    differences = [1e6 * (on - off) for off, on in pairs]
    step_us = 1e6 * statistics.median(off for off, _ in pairs)
    low, high = interval(differences)
    median = statistics.median(differences)
    return {
        "device": device,
        "model": model,
        "step_ms": step_us / 1000,
        "overhead_us": median,
        "overhead_us_95": [low, high],
        "overhead_percent": 100 * median / step_us,
        "overhead_percent_95": [100 * low / step_us, 100 * high / step_us],
        "reading_us_per_step_outside_the_step": 1e6 * statistics.median(readings),
        "steps_per_block": steps,
        "blocks_off_on_seconds_per_step": pairs,
    }


def machine(device: str) -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "load_average": os.getloadavg(),
    }


def span_nanoseconds() -> dict[str, float]:
    """What hotlap.span costs when hotlap is not running: the best of several tight loops, less an empty one."""

    def nothing() -> None:
        return None

    decorated = hotlap.span("section")(nothing)
    loops = {
        "with": "for _ in range(n):\n with span('section'): pass",
        "decorated": "for _ in range(n): decorated()",
        "undecorated": "for _ in range(n): nothing()",
        "empty": "for _ in range(n): pass",
    }
    names = {"span": hotlap.span, "decorated": decorated, "nothing": nothing, "n": 100_000}
    best = {
        name: min(timeit.repeat(code, globals=names, number=1, repeat=9)) * 1e9 / 100_000
        for name, code in loops.items()
    }
    return {"with": best["with"] - best["empty"], "decorated": best["decorated"] - best["undecorated"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = {
        "benchmark": "overhead",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(options.device),
        "span_ns_when_not_running": span_nanoseconds(),
        "result": measure(options.device, options.depth, options.rounds, options.steps),
    }
    text = json.dumps(result, indent=1)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n", encoding="utf-8")
    shown = {name: value for name, value in result["result"].items() if not name.startswith("blocks")}
    print(json.dumps({**shown, "span_ns_when_not_running": result["span_ns_when_not_running"]}, indent=1))


if __name__ == "__main__":
    main()
