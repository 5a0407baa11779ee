"""hotlap profile --batch-sizes: the same command again and again, each time with another batch size.

Another batch size is another training, so nothing is chosen and nothing is kept: the report says what would change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hotlap.errors import HotlapError
from hotlap.records.batch_sizes import BatchSizeRun, BatchSizeRuns
from hotlap.records.observation import Observation
from hotlap.workflows.profile import OnStage, Profile, ProfileOptions, observe

FACTORS = (0.5, 2.0, 4.0)  # of the program's own size, where none are named


def measure(options: ProfileOptions, profile: Profile, sizes: Sequence[int], on_stage: OnStage) -> BatchSizeRuns:
    """Run the command of a finished profile with each size, the smallest first; save the record in its folder."""
    seen = profile.observation
    loader = next((loader for loader in seen.loaders if loader.role == "train"), None)
    if loader is None or loader.batch_size is None:
        raise HotlapError(
            "--batch-sizes needs a training that is fed by a DataLoader with a batch size; change it in the program, "
            "and profile that"
        )
    now = loader.batch_size
    wanted = sorted({int(now * factor) for factor in FACTORS} if not sizes else {*sizes} - {now})
    runs = [_figures(now, seen)]
    for size in wanted:
        if 0 < size <= (loader.length or size):
            runs.append(_run(options, profile, (now, size), on_stage))
    optimizer = seen.optimizers[0].name if seen.optimizers else None
    found = BatchSizeRuns(
        now=now, rows=loader.length, optimizer=optimizer, runs=tuple(sorted(runs, key=lambda run: run.batch_size))
    )
    profile.run.save("batch_sizes", found)
    return found


def _run(options: ProfileOptions, profile: Profile, resized: tuple[int, int], on_stage: OnStage) -> BatchSizeRun:
    again = replace(options, trace=False, full=False, quiet=True)
    stage = f"batch-{resized[1]}"
    try:
        seen, ending = observe(again, profile.run, stage, on_stage, resized=resized)
    except HotlapError as error:
        return BatchSizeRun(batch_size=resized[1], note=f"no step: {error}")
    if ending.exit_code:
        return BatchSizeRun(batch_size=resized[1], note=f"the command failed (exit code {ending.exit_code})")
    return _figures(resized[1], seen)


def _figures(size: int, seen: Observation) -> BatchSizeRun:
    return BatchSizeRun(
        batch_size=size,
        samples_per_second=seen.samples_per_second,
        step_ms=seen.mean_step_ms,
        peak_host_mb=seen.memory.peak_host_mb,
        peak_device_mb=seen.memory.peak_device_mb,
    )
