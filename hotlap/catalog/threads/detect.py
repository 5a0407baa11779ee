from __future__ import annotations

from hotlap.records.observation import BACKWARD, FORWARD, OPTIMIZER, Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """Expect at most the time of the operators, if threads and loader workers compete for cores."""
    if seen.on_cuda or seen.settings is None:
        return None
    threads, cores = seen.settings.threads, seen.machine.cores
    workers = max((loader.workers for loader in seen.loaders if loader.role == "train"), default=0)
    processes = max(1, len(seen.ranks))
    wanted = processes * (threads + workers)
    share = sum(seen.shares.get(phase, 0.0) for phase in (FORWARD, BACKWARD, OPTIMIZER))
    if threads == 1 or wanted <= cores or share <= 0:
        return None
    who = f"{threads} threads and {workers} loader workers" if workers else f"{threads} threads"
    times = f" in each of {processes} processes" if processes > 1 else ""
    return Expectation(most=share, why=f"{who}{times} share {cores} cores")


def tries(seen: Observation) -> tuple[str, ...]:
    """Return powers of two below the current number, nearest first."""
    uses = seen.settings.threads if seen.settings is not None else 1
    return tuple(str(1 << power) for power in reversed(range(11)) if 1 << power < uses)
