"""A step of Adam by torch's fused kernel and by the engine's, with and without clipping, on a GPU.

`python benchmarks/engine/engine_adam.py --out FILE`

Each way is captured as a CUDA graph of ten steps, so that the host's time is not in it, and replayed by turns.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from graph_times import Captured, about, by_turns, medians
from torch import nn

from hotlap.engine.optimizers import Clipping
from hotlap.kernels import adam

MODELS = {
    "battery_fnn, 6 tensors": [(64, 7), (64,), (64, 64), (64,), (1, 64), (1,)],
    "bloom, 6 tensors": [(512, 1024), (512,), (512, 512), (512,), (1296, 512), (1296,)],
    "10 M in 40 tensors": [(512, 488)] * 40,
    "100 M in 100 tensors": [(1000, 1000)] * 100,
}


def ways(sizes: list[Any], clip: float | None) -> dict[str, Captured]:
    device, found = torch.device("cuda"), {}
    for name in ("torch", "engine"):
        made = [nn.Parameter(torch.randn(size, device=device)) for size in sizes]
        optimizer = torch.optim.Adam(made, lr=torch.tensor(1e-3, device=device), fused=True, capturable=True)
        for parameter in made:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        launch = adam.one_launch(optimizer, clip, device)
        assert launch is not None
        clipping = Clipping(clip, device) if clip is not None else None
        if name == "engine":
            found[name] = Captured(launch.step)
        elif clipping is not None:
            found[name] = Captured(
                lambda clipping=clipping, optimizer=optimizer, made=made: clipping.step(optimizer, made)
            )
        else:
            found[name] = Captured(optimizer.step)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this machine has no GPU that torch can use")
    results = []
    for model, sizes in MODELS.items():
        for clip in (None, 1.0):
            times = by_turns(ways(sizes, clip))
            results.append({"model": model, "clip": clip, "us": times})
            print(f"{model:22} clip {clip}: {medians(times)}", flush=True)
    options.out.write_text(
        json.dumps({"about": about("engine_adam.py"), "results": results}, indent=1), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
