"""Gives workers to loaders whose samples are worth it, as many as fit beside the training."""

from __future__ import annotations

import math
import multiprocessing
from typing import Any

from hotlap import machine
from hotlap.catalog.loader_workers.reaper import Reaper
from hotlap.loading.pure import pure, pure_collate
from hotlap.loading.unsuited import Unfit
from hotlap.loading.weight import Weight, weight_of
from hotlap.machine import cores_of_a_rank
from hotlap.patch.forks import why_no_processes
from hotlap.runtime.decline import EntryDeclined, no_effect
from hotlap.runtime.loader_arguments import LoaderArguments, WorkerStartNotice, when_made
from hotlap.runtime.main_script import why_not_twice
from hotlap.runtime.site import Site

LIGHT_BATCH_US = 1000.0  # sending a batch between processes costs at most this
PREFETCH = 2  # torch's default number of batches prepared by a worker


def apply(site: Site) -> None:
    reaper, started = Reaper(), WorkerStartNotice(site)
    when_made(site, lambda arguments: _settings(site, arguments, started))
    site.after(site.seams.iterating, lambda loader, args, kwargs, iterator: reaper.watch(iterator))
    site.ledger.later(reaper.close)


def _settings(site: Site, arguments: LoaderArguments, started: WorkerStartNotice) -> dict[str, Any]:
    _check_kind(site, arguments)
    most = _most(site, arguments)
    if arguments.start_method != "fork" and (why := why_not_twice()) is not None:
        raise EntryDeclined(why)
    weight = None if arguments.iterable else _weight(site, arguments)
    workers = _count(site, arguments, weight, most)
    report = f"{arguments.name}: {arguments.workers} → {workers} workers"
    if site.value is not None and workers < site.value:
        report += f" ({cores_of_a_rank()} cores allow no more)"
    started.say(arguments.dataset, report)
    return {"num_workers": workers}


def _weight(site: Site, arguments: LoaderArguments) -> Weight:
    """Return the sample cost of a dataset, which must give the same items in every process."""
    try:
        known = pure(arguments.dataset)
        if (collate := arguments.given.get("collate_fn")) is not None:
            pure_collate(collate, known)
        if known.study.ordered and not arguments.workers and site.torch.get_num_threads() > 1:
            raise Unfit("the last digits of its items depend on the number of threads, and a worker has only one")
        weight = weight_of(site.torch, arguments.dataset, known)
    except Unfit as why:
        raise EntryDeclined(f"{arguments.name}: {why}; to use workers anyway, set num_workers in the program") from None
    if not weight.on_host:
        raise EntryDeclined(f"{arguments.name} creates its samples on the device")
    batch = weight.item_us * arguments.batch_size
    if site.value is None and batch < LIGHT_BATCH_US:
        raise no_effect(f"{arguments.name}: a batch takes only {batch:.0f} µs to fetch; sending it would cost more")
    return weight


def _check_kind(site: Site, arguments: LoaderArguments) -> None:
    if multiprocessing.current_process().daemon:
        raise no_effect("this process is a daemon, which may not start processes")
    if not site.asked and (why := why_no_processes()) is not None:
        raise EntryDeclined(f"{why}; ask for it by name")
    if arguments.iterable:
        if not shards_itself(arguments):
            raise EntryDeclined(f"{arguments.name} is a stream, and every worker would repeat all of it")
        if not site.asked:
            raise EntryDeclined(
                f"{arguments.name} is a stream whose batches depend on the number of workers; ask for it by name"
            )
    strange = arguments.strange_sampler()
    if strange is not None and not site.asked:
        raise EntryDeclined(f"workers would read the sampler {strange} ahead of the training; ask for it by name")


def shards_itself(arguments: LoaderArguments) -> bool:
    """Return whether a stream splits itself among workers, judging by the names its class uses."""
    if arguments.given.get("worker_init_fn") is not None:
        return True
    for kind in type(arguments.dataset).__mro__:
        functions = () if kind.__module__.startswith("torch.") else vars(kind).values()
        for function in functions:
            code = getattr(function, "__code__", None)
            if code is not None and "get_worker_info" in code.co_names:
                return True
    return False


def _most(site: Site, arguments: LoaderArguments) -> int:
    """Return how many workers the cores allow; a requested number must leave one core for the training."""
    cores = cores_of_a_rank()
    threads = 1 if site.value is not None else machine.training_threads(site.torch)
    most = cores - threads
    if most <= arguments.workers:
        has = f"keeps its {arguments.workers} workers" if arguments.workers else "gets no workers"
        raise no_effect(f"{arguments.name} {has}: {cores} cores, {threads} of them for the training")
    if site.value is not None and site.value <= arguments.workers:
        raise no_effect(f"{arguments.name} already has {arguments.workers} workers")
    return most


def _count(site: Site, arguments: LoaderArguments, weight: Weight | None, most: int) -> int:
    """Return enough workers for a batch per millisecond, or the requested number, within cores, memory and batches."""
    depth = arguments.given.get("prefetch_factor") or PREFETCH
    size = 0 if weight is None else weight.item_bytes * arguments.batch_size
    limit = min(most, machine.workers_by_memory(size, depth))
    if limit <= arguments.workers:
        raise no_effect(f"{arguments.name}: memory allows no more than {limit} workers")
    if site.value is not None:
        wanted = site.value
    else:
        wanted = most if weight is None else math.ceil(weight.item_us * arguments.batch_size / LIGHT_BATCH_US)
    batches = _batches(arguments)
    workers = min(wanted, limit) if batches is None else min(wanted, limit, max(1, batches))
    if workers <= arguments.workers:
        raise no_effect(f"{arguments.name}: {arguments.workers} workers are enough")
    return int(workers)


def _batches(arguments: LoaderArguments) -> int | None:
    try:
        return math.ceil(len(arguments.dataset) / arguments.batch_size)
    except TypeError:
        return None
