"""An invented bench for the tests that only draw it."""

from __future__ import annotations

from hotlap.bench.record import Bench, Choice, Line, Run, Task
from hotlap.bench.summary import summarize
from tests.bench.conftest import MACHINE


def lines_of(seconds: list[float], metrics: list[float], target: float = 0.25, samples: int = 1000) -> tuple[Line, ...]:
    """Epoch lines that arrive one second after their training ends, the first after a start of ten seconds."""
    at, lines = 10.0, [Line(at=9.0, text=f"train {samples} samples  valid 10 samples")]
    for number, (took, metric) in enumerate(zip(seconds, metrics, strict=True), 1):
        at += took + 1.0
        lines.append(Line(at=at, text=f"epoch {number}  loss 1.0  rmse {metric}  seconds {took}"))
    verdict = "reached" if metrics[-1] <= target else "missed"
    return (*lines, Line(at=at + 1, text=f"final rmse {metrics[-1]} target {target} {verdict}"))


def run_of(workload: str, arm: str, seed: int, lines: tuple[Line, ...], **more) -> Run:
    usual = {"ended": "trained", "why": None, "exit_code": 0, "errors": (), "seconds": 20.0}
    usual |= {"started": "2026-01-01T00:00:00+00:00", "command": "python naive.py"}
    usual |= {"peak_host_mb": 100.0 + seed, "peak_device_mb": None}
    return Run(workload=workload, arm=arm, seed=seed, lines=lines, **(usual | more))


def bench_of(*runs: Run, higher_is_better: bool = False) -> Bench:
    names = tuple(dict.fromkeys(run.workload for run in runs))
    arms = tuple(dict.fromkeys(run.arm for run in runs))
    choice = Choice(workloads=names, arms=arms, size="tiny", device="cpu", seeds=3, epochs=None)
    tasks = tuple(Task(name=name, higher_is_better=higher_is_better, source="0") for name in names)
    return Bench(
        schema=1, benchmark="bench", date="2026-01-01T00:00:00+00:00", command="hotlap bench", machine=MACHINE,
        versions={"torch": "2.13"}, environment={"OMP_NUM_THREADS": "1"}, choice=choice,
        tasks=tasks, host_memory="PSS", runs=runs, summary=summarize(choice, tasks, runs),
    )  # fmt: skip


def usual_bench() -> Bench:
    """Limit is twice as fast as naive on both workloads; accelerate broke on one."""
    runs = []
    for workload in ("moon", "sun"):
        for seed in range(3):
            wobble = 1 + 0.01 * seed
            runs.append(run_of(workload, "naive", seed, lines_of([9.0, 4.0 * wobble, 4.0], [0.5, 0.3, 0.2])))
            runs.append(run_of(workload, "limit", seed, lines_of([7.0, 2.0, 2.0 * wobble], [0.5, 0.2, 0.1])))
    runs.append(run_of("sun", "accelerate", 0, (), ended="failed", why="exit code 3: a <bug> | a *star*", exit_code=3))
    return bench_of(*runs)
