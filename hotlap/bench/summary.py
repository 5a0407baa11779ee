"""Summarises raw lines into one row per workload and arm.

Steady state is every epoch of a run after the first, which includes the warm-up. A run of a single epoch has no other,
so that epoch is used and the row is marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from hotlap.bench.contract import RunReport, read
from hotlap.bench.record import TRAINED, Choice, Row, Run, Task
from hotlap.bench.workloads import NAIVE
from hotlap.judge.ratio import Arm, Work, ratio, throughput


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """The runs of one arm on one workload, with the reports of those that trained."""

    runs: list[Run]
    trainings: list[RunReport]

    @property
    def steady(self) -> Arm:
        return [steady(training) for training in self.trainings]


def summarize(choice: Choice, tasks: Sequence[Task], runs: Sequence[Run]) -> tuple[Row, ...]:
    rows = []
    for task in tasks:
        groups = {arm: _group(runs, task.name, arm) for arm in choice.arms}
        naive = groups.get(NAIVE)
        for arm, group in groups.items():
            if group.runs:
                rows.append(_row(task, arm, group, naive.steady if naive and naive.trainings else None))
    return tuple(rows)


def steady(training: RunReport) -> list[Work]:
    epochs = training.epochs[1:] or training.epochs
    return [Work(samples=training.samples, seconds=epoch.seconds) for epoch in epochs]


def seconds_to_target(training: RunReport, higher_is_better: bool) -> float | None:
    """Return the seconds from the start of the process to the first epoch that met the target."""
    for epoch in training.epochs:
        met = epoch.metric >= training.target if higher_is_better else epoch.metric <= training.target
        if met:
            return epoch.at
    return None


def warmup_seconds(training: RunReport) -> float | None:
    """Return how much later the first epoch's line came than a steady epoch takes, evaluation included in both."""
    arrivals = [epoch.at for epoch in training.epochs]
    gaps = [after - before for before, after in pairwise(arrivals)]
    return max(0.0, arrivals[0] - median(gaps)) if gaps else None


def _group(runs: Sequence[Run], workload: str, arm: str) -> _Group:
    selected = sorted((run for run in runs if (run.workload, run.arm) == (workload, arm)), key=lambda run: run.seed)
    return _Group(runs=selected, trainings=[read(run.lines) for run in selected if run.ended == TRAINED])


def _row(task: Task, arm: str, group: _Group, naive: Arm | None) -> Row:
    trainings, first = group.trainings, group.trainings[0] if group.trainings else None
    times = [seconds_to_target(training, task.higher_is_better) for training in trainings]
    warmups = [seconds for training in trainings if (seconds := warmup_seconds(training)) is not None]
    return Row(
        workload=task.name,
        arm=arm,
        trained=len(trainings),
        runs=len(group.runs),
        broken=tuple(f"seed {run.seed}: {run.why}" for run in group.runs if run.ended != TRAINED),
        settings=first.settings if first else None,
        samples_per_second=throughput(group.steady) if trainings else None,
        single_epoch=any(len(training.epochs) == 1 for training in trainings),
        ratio=ratio(group.steady, naive) if trainings and naive and arm != NAIVE else None,
        metric=first.metric if first else None,
        target=first.target if first else None,
        qualities=tuple(training.final for training in trainings),
        reached=sum(training.reached for training in trainings),
        seconds_to_target=tuple(seconds for seconds in times if seconds is not None),
        warmup_seconds=median(warmups) if warmups else None,
        peak_host_mb=_most([run.peak_host_mb for run in group.runs if run.ended == TRAINED]),
        peak_device_mb=_most([run.peak_device_mb for run in group.runs if run.ended == TRAINED]),
    )


def _most(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
