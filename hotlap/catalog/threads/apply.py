"""Sets the number of threads of torch's operators: before torch starts if it is known then, else while it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from hotlap.machine import bound_cores, cores_of_a_rank, usable_cores
from hotlap.runtime.site import Site

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
OURS = "HOTLAP_THREADS"  # says that the variables were set here, not by the user


def environment(value: int | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that set the number of threads before torch starts.

    A requested number is always set. One found here is set only if OpenMP would see too many cores; for ranks and
    loader workers it is known only once the program runs.
    """
    if any(name in environ for name in VARIABLES):
        return {}
    if value is None:
        value = usable_cores()
        if value >= bound_cores():
            return {}
    return {**dict.fromkeys(VARIABLES, str(value)), OURS: str(value)}


def threads_beside(cores: int, workers: int) -> int:
    """Return how many threads leave busy workers their cores. One thread that waits for a core holds up all threads."""
    return max(1, cores - workers, cores // 4)


def apply(site: Site) -> None:
    if site.value is not None:
        _set(site, site.value, "as requested")
        return
    if (given := os.environ.get(VARIABLES[0])) is not None and OURS not in os.environ:
        site.no_effect(f"{VARIABLES[0]}={given} is set, which takes precedence")
        return
    cores = cores_of_a_rank()
    threads = site.torch.get_num_threads()
    if threads > cores or OURS in os.environ:
        _set(site, cores, f"this process may use {cores} cores")
    else:
        site.no_effect(f"torch uses {threads} threads on {cores} cores, and there are no loader workers")
    if site.asked:  # workers that mostly wait need no core, so no plan reserves one unmeasured
        started = (
            site.torch.utils.data.dataloader._MultiProcessingDataLoaderIter
        )  # not created where the dataset is cached
        site.replace(started, "__init__", partial(_workers_start, site))


def _workers_start(site: Site, original: Any, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Lower the number of threads when workers start; never raise it again, since results depend on it."""
    workers = (args[0] if args else kwargs["loader"]).num_workers
    threads = threads_beside(cores_of_a_rank(), workers)
    if threads < site.torch.get_num_threads():
        _set(site, threads, f"{workers} loader workers need cores too")
    return original(*args, **kwargs)


def _set(site: Site, threads: int, why: str) -> None:
    torch, before = site.torch, site.torch.get_num_threads()
    if threads != before:
        torch.set_num_threads(threads)
        site.ledger.later(partial(torch.set_num_threads, before))
    noun = "thread" if threads == 1 else "threads"
    site.applied(f"{threads} {noun}{f', not {before}' if before != threads else ''}: {why}")
