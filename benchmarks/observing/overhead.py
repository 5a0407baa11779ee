"""What observing costs a training step. `python benchmarks/observing/overhead.py [--device cuda] [--out FILE]`

A step's time drifts by more than we look for, over seconds. So one process alternates every few steps, in random order,
between three arms: hotlap out of the way, hotlap observing without looking into the steps, and hotlap looking into all
of them. Of steps as short as these only some are looked into (hotlap/observe/step_sampling.py): the overhead
is the mean of both kinds, weighted by how often each occurs. The step is made to last about 5 ms and holds what a usual
loop does: a DataLoader batch, two copies, forward, loss, backward, optimizer step and one `.item()`. Reported: the
medians of the paired differences per step, weighted, with a 95 % bootstrap interval over the rounds, in µs and as a
share of the step.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import tempfile
import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset

import hotlap
from hotlap.machine import usable_cores
from hotlap.observe import agent as observing
from hotlap.observe.step_sampling import share_of_steps
from hotlap.observe.surroundings import cpu_name
from hotlap.observe.window import planned_steps
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.records.session import Session

TARGET_MS = 5.0
WARM = 30  # steps in which the agent warms up
SKIPPED = 2  # steps after each change of arm


class Loop:
    """A typical training loop whose step lasts as long as requested."""

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

    def begin_epoch(self) -> None:
        self._batches = iter(self.loader)

    def _next(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            self.begin_epoch()
            return next(self._batches)


def seconds_of_steps(loop: Loop, steps: int) -> list[float]:
    """Time some steps; each ends with .item(), so none is cut short."""
    took = []
    for _ in range(steps):
        began = time.perf_counter()
        loop.step()
        took.append(time.perf_counter() - began)
    return took


class Observer:
    """hotlap measuring inside this process; it can be taken out and put back."""

    def __init__(self, loop: Loop, folder: str) -> None:
        session = Session(
            schema=1, folder=folder, agent="", steps=10**9, warmup=2, max_seconds=1e9, full=True, ceiling=False,
            trace=False, started=time.time(),
        )  # fmt: skip
        self.seams = Seams(torch, Guard(strict=True))
        self.seams.open()
        self.agent = observing.Agent(torch, session, self.seams)
        self.agent.sampled_seams.detail = 1.0  # from here on the benchmark decides
        self.agent.subscribe()
        loop.begin_epoch()  # a loader iterated before hotlap came would never be known to it
        for _ in range(WARM):
            loop.step()
        assert self.agent.state == observing.TIMING, "the agent is not measuring"
        assert self.agent.loaders.seen, "the loader is not known"
        assert not self.seams.calling.attended, "the root is not settled"

    @contextmanager
    def arm(self, name: str) -> Iterator[None]:
        if name != "off":
            self.agent.sampled_seams.look_into(name == "detailed")
            yield
            return
        hooks = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
        saved = [dict(hooks_of_kind) for hooks_of_kind in hooks]
        for hooks_of_kind in hooks:
            hooks_of_kind.clear()
        gc.callbacks.remove(self.agent._collecting)
        with self.seams.ledger.hidden():
            yield
        gc.callbacks.append(self.agent._collecting)
        for hooks_of_kind, entries in zip(hooks, saved, strict=True):
            hooks_of_kind.update(entries)

    def read(self) -> float:
        """Return the seconds that reading the tape takes, which a run does outside the steps it times."""
        began = time.perf_counter()
        self.agent._catch_up()
        return time.perf_counter() - began


def choose_width(device: str, depth: int) -> int:
    """Return the width whose step comes closest to the target."""
    best, distance = 0, float("inf")
    for width in (16, 32, 64, 96, 128, 160, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096):
        took = 1000 * statistics.median(seconds_of_steps(Loop(device, width, depth, sync=True), 20)[5:])
        if abs(took - TARGET_MS) < distance:
            best, distance = width, abs(took - TARGET_MS)
        if took > 2 * TARGET_MS:
            break
    return best


def interval(brief: list[float], detailed: list[float], share: float) -> tuple[float, float]:
    """Return the 95 % interval of the weighted median of the paired differences, by bootstrap over the rounds."""
    picks = np.random.default_rng(0).integers(0, len(brief), (5000, len(brief)))
    little, much = (np.median(np.array(values)[picks], axis=1) for values in (brief, detailed))
    low, high = np.percentile(share * much + (1 - share) * little, [2.5, 97.5])
    return float(low), float(high)


ARMS = ("off", "brief", "detailed")
Round = dict[str, float]  # by arm, the median step in µs


def measure(device: str, depth: int, rounds: int, steps: int) -> dict[str, Any]:
    width = choose_width(device, depth)
    loop = Loop(device, width, depth, sync=True)
    typical = statistics.median(seconds_of_steps(loop, 60)[20:])
    share = share_of_steps(typical, planned_steps(typical, None))
    random = Random(0)
    taken: list[Round] = []
    reading = 0.0
    with tempfile.TemporaryDirectory() as folder:
        observer = Observer(loop, folder)
        for number in range(rounds):
            taken.append(one_round(loop, observer, steps, random))
            if number % 10 == 9:
                reading += observer.read()
        observed = observer.agent.tally.steps
        observer.seams.close()
    assert observed >= rounds * 2 * steps, f"only {observed} steps were observed"
    model = f"{depth} × Linear({width}), batch 16, {2 * depth + 1} modules"
    outside = 1e6 * reading / observed
    return {
        "device": device, "model": model, "steps_per_arm_and_round": steps, **summary(share, taken),
        "reading_us_per_step_outside_the_step": outside, "rounds_median_us_per_step": taken,
    }  # fmt: skip


def one_round(loop: Loop, observer: Observer, steps: int, random: Random) -> Round:
    """Time a few steps of each arm, without the first of them."""
    found: Round = {}
    for arm in random.sample(ARMS, len(ARMS)):
        with observer.arm(arm):
            found[arm] = 1e6 * statistics.median(seconds_of_steps(loop, steps + SKIPPED)[SKIPPED:])
    return found


def summary(share: float, taken: list[Round]) -> dict[str, Any]:
    brief = [round_["brief"] - round_["off"] for round_ in taken]
    detailed = [round_["detailed"] - round_["off"] for round_ in taken]
    weighted = share * statistics.median(detailed) + (1 - share) * statistics.median(brief)
    step_us = statistics.median(round_["off"] for round_ in taken)
    low, high = interval(brief, detailed, share)
    return {
        "step_ms": step_us / 1000,
        "share_of_steps_looked_into": share,
        "overhead_us": weighted,
        "overhead_us_95": [low, high],
        "overhead_percent": 100 * weighted / step_us,
        "overhead_percent_95": [100 * low / step_us, 100 * high / step_us],
        "brief_step_us": statistics.median(brief),
        "brief_step_us_95": interval(brief, detailed, 0.0),
        "detailed_step_us": statistics.median(detailed),
        "detailed_step_us_95": interval(brief, detailed, 1.0),
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
    """Return the cost of hotlap.span when hotlap is not running: the best of several tight loops, less an empty one."""

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
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--steps", type=int, default=6, help="of each arm in a round")
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
    shown = {name: value for name, value in result["result"].items() if not name.startswith("rounds")}
    print(json.dumps({**shown, "span_ns_when_not_running": result["span_ns_when_not_running"]}, indent=1))


if __name__ == "__main__":
    main()
