"""The order in which arms run: interleaved, so that a drift of the machine affects them equally."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.bench.record import Choice, Run

Key = tuple[str, str, int]  # workload, arm, seed


def schedule(choice: Choice) -> list[Key]:
    """Return the order of the runs: round k uses seed k; arms run A B C D, and D C B A in the next round."""
    keys = []
    for seed in range(choice.seeds):
        arms = choice.arms if seed % 2 == 0 else choice.arms[::-1]
        keys += [(workload, arm, seed) for workload in choice.workloads for arm in arms]
    return keys


def seconds_left(runs: Sequence[Run], waiting: Sequence[Key], current: Key | None, elapsed: float) -> float | None:
    """Estimate from finished runs of the same workload and arm, or else of the same workload, or else of any.

    `waiting` excludes the current run, which started `elapsed` seconds ago. None until the first run has ended.
    """
    if not runs:
        return None
    left = sum(_expected(runs, key) for key in waiting)
    if current is not None:
        left += max(0.0, _expected(runs, current) - elapsed)
    return left


def _expected(runs: Sequence[Run], key: Key) -> float:
    workload, arm, _ = key
    same_arm = [run.seconds for run in runs if (run.workload, run.arm) == (workload, arm)]
    similar = same_arm or [run.seconds for run in runs if run.workload == workload] or [run.seconds for run in runs]
    return sum(similar) / len(similar)
