"""GRUs at which cuDNN itself fails, each in a process of its own. `python benchmarks/recurrent/recurrent_crash.py`

By `torch` it is plain `torch.nn.GRU` or `LSTM`; by the name of a variant it is ours.
"""

from __future__ import annotations

import subprocess
import sys

import torch

CASES = (
    "gru 8192 400 128 1 8 torch", "gru 8192 400 128 1 8 cuda:tile:r8:c2:b1", "gru 8192 300 128 1 8 torch",
    "gru 8192 400 128 2 64 torch", "gru 8192 400 128 3 3 torch", "gru 8192 400 128 1 64 torch",
)  # fmt: skip
ONE = """
import contextlib, sys, torch
from hotlap.engine import nn as ours
from hotlap.kernels.recurrent import selection
kind, *sizes, way = sys.argv[1:]
batch, steps, hidden, layers, features = map(int, sizes)
name = kind.upper()
layer = getattr(torch.nn if way == "torch" else ours, name)(features, hidden, layers).cuda()
x = torch.randn(steps, batch, features, device="cuda")
with contextlib.nullcontext() if way == "torch" else choosing.forced(way):
    y = layer(x)[0]
    torch.cuda.synchronize()
    print("forward", end=" ", flush=True)
    torch.autograd.grad(y, list(layer.parameters()), torch.randn_like(y))
    torch.cuda.synchronize()
    print("backward", end=" ", flush=True)
"""


def main() -> int:
    if not torch.cuda.is_available():
        print("torch sees no GPU: nothing can be tried", file=sys.stderr)
        return 1
    for case in CASES:
        done = subprocess.run([sys.executable, "-c", ONE, *case.split()], capture_output=True, text=True)
        errors = [line for line in done.stderr.splitlines() if "rror" in line and not line.startswith(" ")]
        print(
            f"{case}: {done.stdout}{'well' if done.returncode == 0 else errors[0] if errors else 'failed'}", flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
