"""A step of Adam by torch's fused kernel and by the engine's, with and without clipping, on a GPU.

`python benchmarks/engine_adam.py --out FILE`

Each way is captured as a CUDA graph of ten steps, so that the host's time is not in it, and replayed by turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hotlap.engine import adam
from hotlap.engine.optimizers import Clipping

STEPS, TURNS, REPLAYS = 10, 21, 5
MODELS = {
    "battery_fnn, 6 tensors": [(64, 7), (64,), (64, 64), (64,), (1, 64), (1,)],
    "bloom, 6 tensors": [(512, 1024), (512,), (512, 512), (512,), (1296, 512), (1296,)],
    "10 M in 40 tensors": [(512, 488)] * 40,
    "100 M in 100 tensors": [(1000, 1000)] * 100,
}


class Captured:
    def __init__(self, work: Callable[[], Any]) -> None:
        self.work, self.graph = work, torch.cuda.CUDAGraph()  # the work holds the tensors that the graph reads
        work()
        with torch.cuda.graph(self.graph):
            for _ in range(STEPS):
                work()

    def __call__(self) -> None:
        self.graph.replay()


def ways(sizes: list[Any], clip: float | None) -> dict[str, Captured]:
    device, found = torch.device("cuda"), {}
    for name in ("torch", "engine"):
        made = [nn.Parameter(torch.randn(size, device=device)) for size in sizes]
        optimizer = torch.optim.Adam(made, lr=torch.tensor(1e-3, device=device), fused=True, capturable=True)
        for one in made:
            one.grad = torch.randn_like(one)
        optimizer.step()
        launch = adam.one_launch(optimizer, clip, device)
        assert launch is not None
        clipping = Clipping(clip, device) if clip is not None else None
        if name == "engine":
            found[name] = Captured(launch.step)
        elif clipping is not None:
            found[name] = Captured(lambda clipping=clipping, one=optimizer, made=made: clipping.step(one, made))
        else:
            found[name] = Captured(optimizer.step)
    return found


def microseconds(replay: Captured) -> float:
    """Of one step."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(REPLAYS):
        replay()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end) / (STEPS * REPLAYS)


def measured(sizes: list[Any], clip: float | None) -> dict[str, Any]:
    found = ways(sizes, clip)
    times: dict[str, list[float]] = {name: [] for name in found}
    for turn in range(TURNS + 1):
        for name in sorted(found, reverse=bool(turn % 2)):
            times[name].append(microseconds(found[name]))
    return {name: each[1:] for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no GPU is there")
    about = {
        "command": "python benchmarks/engine_adam.py --out FILE", "date": datetime.now(timezone.utc).isoformat(),
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "python": platform.python_version(),
    }  # fmt: skip
    results = []
    for model, sizes in MODELS.items():
        for clip in (None, 1.0):
            times = measured(sizes, clip)
            results.append({"model": model, "clip": clip, "us": times})
            medians = {name: statistics.median(each) for name, each in times.items()}
            each = ", ".join(f"{name} {took:.1f} µs" for name, took in medians.items())
            print(f"{model:22} clip {clip}: {each}", flush=True)
    options.out.write_text(json.dumps({"about": about, "results": results}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
