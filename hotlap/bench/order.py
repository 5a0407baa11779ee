"""In which order arms run: interleaved, so that a drift of the machine hits all of them alike."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.bench.record import Choice, Run

Key = tuple[str, str, int]  # workload, arm, seed


def schedule(choice: Choice) -> list[Key]:
    """Round k trains with seed k; the arms of a workload run A B C D, in the next round D C B A."""
    keys = []
    for seed in range(choice.seeds):
        arms = choice.arms if seed % 2 == 0 else choice.arms[::-1]
        keys += [(workload, arm, seed) for workload in choice.workloads for arm in arms]
    return keys


def seconds_left(runs: Sequence[Run], waiting: Sequence[Key], current: Key | None, elapsed: float) -> float | None:
    """From runs already made of the same workload and arm, else of the same workload, else of any.

    `waiting` leaves out the current run, of which `elapsed` seconds are gone. None while nothing has ended yet.
    """
    if not runs:
        return None
    left = sum(_expected(runs, key) for key in waiting)
    if current is not None:
        left += max(0.0, _expected(runs, current) - elapsed)
    return left


def _expected(runs: Sequence[Run], key: Key) -> float:
    workload, arm, _ = key
    same = [run.seconds for run in runs if (run.workload, run.arm) == (workload, arm)]
    alike = same or [run.seconds for run in runs if run.workload == workload] or [run.seconds for run in runs]
    return sum(alike) / len(alike)
