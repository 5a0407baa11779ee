"""Time work on a GPU as a CUDA graph, which leaves out the host's time; several ways by turns."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

import torch

STEPS, TURNS, REPLAYS = 10, 21, 5


class Captured:
    """A graph that repeats the work several times."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work, self.graph = work, torch.cuda.CUDAGraph()  # the work holds the tensors that the graph reads
        work()
        with torch.cuda.graph(self.graph):
            for _ in range(STEPS):
                work()

    def microseconds(self) -> float:
        """Return the microseconds of the work once."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(REPLAYS):
            self.graph.replay()
        end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end) / (STEPS * REPLAYS)


def by_turns(ways: Mapping[str, Captured]) -> dict[str, list[float]]:
    """Return the microseconds of each way, turn by turn, without the first turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name in sorted(ways, reverse=bool(turn % 2)):
            times[name].append(ways[name].microseconds())
    return {name: microseconds[1:] for name, microseconds in times.items()}


def medians(times: Mapping[str, list[float]]) -> str:
    return ", ".join(f"{name} {statistics.median(microseconds):.1f} µs" for name, microseconds in times.items())


def about(script: str) -> dict[str, str]:
    return {
        "command": f"python benchmarks/engine/{script} --out FILE", "date": datetime.now(timezone.utc).isoformat(),
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "python": platform.python_version(),
    }  # fmt: skip
