"""Batch normalisation and SiLU, forward and backward, by torch's kernels and by the engine's, on a GPU.

`python benchmarks/engine/engine_norms.py --out FILE`

The shapes are those of the banknotes model at size `report`, in channels-last.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from graph_times import Captured, about, by_turns, medians
from torch import nn

from hotlap.engine.nn import BatchNorm2d
from hotlap.kernels.norms import launches
from hotlap.kernels.norms.layer import by_kernels

SHAPES = [(32, 320), (64, 160), (32, 160), (128, 80), (64, 80), (256, 40), (128, 40), (512, 20), (256, 20)]
BATCH = 16
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def work(forward: Callable[[Any], Any], parameters: Iterable[Any], x: Any, g: Any) -> Captured:
    inputs = (x, *parameters)
    return Captured(lambda: torch.autograd.grad(forward(x), inputs, g))


def ways(channels: int, side: int, dtype: torch.dtype, activation: str) -> dict[str, Captured]:
    x, g = (
        torch.randn(BATCH, channels, side, side, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
        for _ in range(2)
    )
    x.requires_grad_()
    theirs = nn.Sequential(nn.BatchNorm2d(channels), *([nn.SiLU()] if activation == "silu" else [])).cuda()
    ours = BatchNorm2d(channels).cuda()
    shape = launches.Shape(BATCH * side * side, channels, dtype, activation, x.get_device())
    kernels = partial(by_kernels, launches.planned(shape), ours)  # also where the layer would leave it to torch
    return {"torch": work(theirs, theirs.parameters(), x, g), "engine": work(kernels, ours.parameters(), x, g)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="some of %(default)s")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this machine has no GPU that torch can use")
    results = []
    for name in options.dtypes.split(","):
        for activation in ("silu", "none"):
            for channels, side in SHAPES:
                times = by_turns(ways(channels, side, DTYPES[name], activation))
                shape = [BATCH, channels, side, side]
                results.append({"shape": shape, "dtype": name, "activation": activation, "us": times})
                print(f"{name} {activation:5} {shape}: {medians(times)}", flush=True)
    made = {"about": about("engine_norms.py"), "results": results}
    options.out.write_text(json.dumps(made, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
