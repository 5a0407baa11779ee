"""Several processes on a GPU train what one does without a graph: over NCCL, and two on one GPU over gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.engine.test_processes import close
from tests.engine.training import same

pytestmark = pytest.mark.cuda
ROOT = Path(__file__).parents[2]


def launched(backend, way, count, folder):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    command = [*launcher, str(Path(__file__).with_name("shared_on_a_gpu.py")), backend, way, str(folder)]
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False, map_location="cpu") for rank in range(count)]


def test_one_process_over_nccl_trains_as_without_it_to_the_bit(tmp_path):
    ((expected, found),) = launched("nccl", "ddp", 1, tmp_path)
    for name, alone in expected.items():
        same(alone, found[name])
    same(found["resumed"], found["plain"])


def test_shared_out_weights_over_nccl_train_as_whole_ones(tmp_path):
    ((expected, found),) = launched("nccl", "fsdp", 1, tmp_path)
    for name, alone in expected.items():
        close(alone, found[name])
    same(found["resumed"], found["plain"])


def test_two_processes_share_one_gpu_over_gloo(tmp_path):
    """Running statistics are those of a share, as with torch's own DDP."""
    (expected, first), (_, second) = launched("gloo", "ddp", 2, tmp_path)
    for name, alone in expected.items():
        same(first[name], second[name])
        if name != "moving":
            close(alone, first[name])
    same(first["resumed"], first["plain"])
