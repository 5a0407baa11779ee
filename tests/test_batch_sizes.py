"""hotlap profile --batch-sizes: the same program with other batch sizes, and what they would mean."""

from __future__ import annotations

import pytest
from harness import profile, python
from warm import warmed

from hotlap.records.batch_sizes import BatchSizeRun, BatchSizeRuns
from hotlap.report.profile.batch_sizes import lines

PROGRAM = """
import sys

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

rows = TensorDataset(torch.randn(640, 8), torch.randn(640, 1))
if "sampler" in sys.argv:
    loader = DataLoader(rows, batch_sampler=BatchSampler(RandomSampler(rows), 16, drop_last=True))
else:
    loader = DataLoader(rows, 16, shuffle=True)
other = DataLoader(rows, batch_size=80)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(1000):
    for inputs, targets in loader:
        if len(inputs) > 64:
            raise RuntimeError("too large for this program")
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    assert len(next(iter(other))[0][0:]) == 80
"""
QUICK = ("--no-ceiling", "--steps", "20", "--warmup", "3")


@pytest.mark.parametrize("way", ["plain", "sampler"])
def test_each_size_is_trained_with_and_its_figures_are_saved(way, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    (tmp_path / "pyproject.toml").touch()
    ran = profile(warmed(python(program, way)), tmp_path, *QUICK, "--batch-sizes", "32,128,16")

    assert ran.code == 0, ran.stderr
    found = ran.record("batch_sizes")
    assert (found["now"], found["rows"], found["optimizer"]) == (16, 640, "Adam")
    assert [run["batch_size"] for run in found["runs"]] == [16, 32, 128]
    first, second, third = found["runs"]
    assert first["samples_per_second"] > 0
    assert second["samples_per_second"] > 0
    assert second["peak_host_mb"] > 0
    assert third["samples_per_second"] is None
    assert "exit code 1" in third["note"]
    assert "hotlap:      32  " in ran.stderr


def test_sizes_that_are_no_numbers_are_refused_before_the_program_starts(tmp_path):
    ran = profile(warmed(python(tmp_path / "missing.py")), tmp_path, "--batch-sizes", "32,large")
    assert ran.code == 2
    assert "'32,large'; name sizes such as 32,64,128, or auto" in ran.stderr


def run(size, samples, **more):
    return BatchSizeRun(batch_size=size, samples_per_second=samples, step_ms=1000 * size / samples, **more)


def test_says_what_the_change_means_for_the_training():
    figures = (
        run(32, 1000.0, peak_host_mb=300.0),
        run(64, 1990.0, peak_host_mb=310.0, peak_device_mb=50.0),
        run(128, 2000.0, peak_host_mb=320.0),
        BatchSizeRun(batch_size=256, note="no step: out of memory"),
    )
    found = BatchSizeRuns(now=32, rows=640, optimizer="AdamW", runs=figures)
    assert lines(found) == [
        "  batch   samples/s   ms/step  steps/epoch  memory",
        "     32       1,000        32           20  300 MB host  now",
        "     64       1,990      32.2           10  50 MB device, 310 MB host",
        "    128       2,000        64            5  320 MB host",
        "    256  no step: out of memory",
        "64 is the smallest that is nearly as fast as the fastest, and another training: 20 -> 10 updates an epoch, "
        "each the mean of 2 times as many samples.",
        "A learning rate that is right for 32 would begin at 1.4 times that (by the square root, usual for Adam and "
        "its kin). Nothing was changed: train with it and compare the quality before you keep it.",
    ]
    right = BatchSizeRuns(now=64, rows=None, optimizer="SGD", runs=figures[1:3])
    assert lines(right)[-1] == "64 is the smallest of these that is nearly as fast as the fastest: nothing to change."
