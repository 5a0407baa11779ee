"""The table of batch sizes, and what another one would do to the training."""

from __future__ import annotations

import math

from hotlap.records.batch_sizes import BatchSizeRun, BatchSizeRuns

ENOUGH = 0.95  # of the highest throughput
ADAPTIVE = ("Ada", "RMSprop", "Lion", "LAMB", "Lamb", "NAdam", "RAdam")  # names begin with one of these


def lines(found: BatchSizeRuns) -> list[str]:
    table = [f"{'batch':>7}  {'samples/s':>10}  {'ms/step':>8}  {'steps/epoch':>11}  memory"]
    table += [_row(found, run) for run in found.runs]
    return [*table, *meaning(found)]


def _row(found: BatchSizeRuns, run: BatchSizeRun) -> str:
    mark = "  now" if run.batch_size == found.now else ""
    if run.note is not None or run.samples_per_second is None or run.step_ms is None:
        return f"{run.batch_size:>7}  {run.note or 'its samples could not be counted'}{mark}"
    steps = "" if found.rows is None else str(math.ceil(found.rows / run.batch_size))
    memory = f"{run.peak_host_mb:,.0f} MB host"
    if run.peak_device_mb is not None:
        memory = f"{run.peak_device_mb:,.0f} MB device, {memory}"
    return f"{run.batch_size:>7}  {run.samples_per_second:>10,.0f}  {run.step_ms:>8.3g}  {steps:>11}  {memory}{mark}"


def suggested(found: BatchSizeRuns) -> BatchSizeRun | None:
    """Return the smallest size that is nearly as fast as the fastest."""
    timed = [run for run in found.runs if run.samples_per_second is not None]
    most = max((run.samples_per_second or 0.0 for run in timed), default=0.0)
    return next((run for run in timed if (run.samples_per_second or 0.0) >= ENOUGH * most), None)


def meaning(found: BatchSizeRuns) -> list[str]:
    best = suggested(found)
    if best is None:
        return []
    if best.batch_size == found.now:
        return [f"{found.now} is the smallest of these that is nearly as fast as the fastest: nothing to change."]
    factor = best.batch_size / found.now
    adaptive = (found.optimizer or "").startswith(ADAPTIVE)
    rate = math.sqrt(factor) if adaptive else factor
    rule = "by the square root, usual for Adam and its kin" if adaptive else "in proportion, usual for SGD"
    updates = ""
    if found.rows is not None:
        before, after = (math.ceil(found.rows / size) for size in (found.now, best.batch_size))
        updates = f" {before:,} -> {after:,} updates an epoch,"
    return [
        f"{best.batch_size} is the smallest that is nearly as fast as the fastest, and another training:{updates} each "
        f"the mean of {factor:g} times as many samples.",
        f"A learning rate that is right for {found.now} would begin at {rate:.2g} times that ({rule}). Nothing was "
        "changed: train with it and compare the quality before you keep it.",
    ]
