"""Gives workers to loaders whose samples are worth it, as many as there is room for beside the training."""

from __future__ import annotations

import math
import multiprocessing
from typing import Any

from hotlap import machine
from hotlap.catalog.loader_workers.reaper import Reaper
from hotlap.loading.pure import Unfit, pure, pure_collate
from hotlap.loading.weight import Weight, weight_of
from hotlap.machine import cores_of_a_rank
from hotlap.patch.forks import why_no_processes
from hotlap.runtime.decline import EntryDeclined, no_effect
from hotlap.runtime.loader_arguments import LoaderArguments, WorkerStartNotice, when_made
from hotlap.runtime.main_script import why_not_twice
from hotlap.runtime.site import Site

LIGHT_BATCH_US = 1000.0  # sending a batch between processes costs up to this
PREFETCH = 2  # batches a worker has under way unless told otherwise


def apply(site: Site) -> None:
    reaper, started = Reaper(), WorkerStartNotice(site)
    when_made(site, lambda making: _settings(site, making, started))
    site.after(site.seams.iterating, lambda loader, args, kwargs, iterator: reaper.watch(iterator))
    site.ledger.later(reaper.close)


def _settings(site: Site, making: LoaderArguments, started: WorkerStartNotice) -> dict[str, Any]:
    _check_kind(site, making)
    most = _most(site, making)
    if making.start_method != "fork" and (why := why_not_twice()) is not None:
        raise EntryDeclined(why)
    weight = None if making.iterable else _weight(site, making)
    workers = _count(site, making, weight, most)
    said = f"{making.name}: {making.workers} → {workers} workers"
    if site.value is not None and workers < site.value:
        said += f" ({cores_of_a_rank()} cores allow no more)"
    started.say(making.dataset, said)
    return {"num_workers": workers}


def _weight(site: Site, making: LoaderArguments) -> Weight:
    """Of a dataset that gives the same items in every process."""
    try:
        known = pure(making.dataset)
        if (collate := making.given.get("collate_fn")) is not None:
            pure_collate(collate, known)
        if known.study.ordered and not making.workers and site.torch.get_num_threads() > 1:
            raise Unfit("the last digits of its items depend on the number of threads, and a worker has one")
        weight = weight_of(site.torch, making.dataset, known)
    except Unfit as why:
        raise EntryDeclined(f"{making.name}: {why}; give its loader num_workers in the program") from None
    if not weight.on_host:
        raise EntryDeclined(f"{making.name} makes its samples on the device")
    batch = weight.item_us * making.batch_size
    if site.value is None and batch < LIGHT_BATCH_US:
        raise no_effect(f"{making.name}: a batch takes only {batch:.0f} µs to fetch, sending it would cost more")
    return weight


def _check_kind(site: Site, making: LoaderArguments) -> None:
    if multiprocessing.current_process().daemon:
        raise no_effect("this process may start no others")
    if not site.asked and (why := why_no_processes()) is not None:
        raise EntryDeclined(f"{why}; ask for it by name")
    if making.iterable:
        if not shards_itself(making):
            raise EntryDeclined(f"{making.name} is a stream: every worker would repeat all of it")
        if not site.asked:
            raise EntryDeclined(
                f"{making.name} is a stream: with other workers its batches are other ones; ask for it by name"
            )
    strange = making.strange_sampler()
    if strange is not None and not site.asked:
        raise EntryDeclined(f"workers read the sampler {strange} ahead of the training; ask for it by name")


def shards_itself(making: LoaderArguments) -> bool:
    """Whether a stream splits itself among workers; found in the names its class uses."""
    if making.given.get("worker_init_fn") is not None:
        return True
    for kind in type(making.dataset).__mro__:
        functions = () if kind.__module__.startswith("torch.") else vars(kind).values()
        for function in functions:
            code = getattr(function, "__code__", None)
            if code is not None and "get_worker_info" in code.co_names:
                return True
    return False


def _most(site: Site, making: LoaderArguments) -> int:
    """Workers that the cores allow. Who asks for a number gets it, up to one core left for the training."""
    cores = cores_of_a_rank()
    threads = 1 if site.value is not None else machine.training_threads(site.torch)
    most = cores - threads
    if most <= making.workers:
        has = f"has {making.workers} workers" if making.workers else "gets no workers"
        raise no_effect(f"{making.name} {has}: {cores} cores, {threads} of them for the training")
    if site.value is not None and site.value <= making.workers:
        raise no_effect(f"{making.name} has {making.workers} workers already")
    return most


def _count(site: Site, making: LoaderArguments, weight: Weight | None, most: int) -> int:
    """As many as make a batch each millisecond, or as asked for; within cores, memory and batches."""
    depth = making.given.get("prefetch_factor") or PREFETCH
    size = 0 if weight is None else weight.item_bytes * making.batch_size
    limit = min(most, machine.workers_by_memory(size, depth))
    if limit <= making.workers:
        raise no_effect(f"{making.name}: memory allows no more than {limit} workers")
    if site.value is not None:
        wanted = site.value
    else:
        wanted = most if weight is None else math.ceil(weight.item_us * making.batch_size / LIGHT_BATCH_US)
    batches = _batches(making)
    workers = min(wanted, limit) if batches is None else min(wanted, limit, max(1, batches))
    if workers <= making.workers:
        raise no_effect(f"{making.name}: {making.workers} workers are enough")
    return int(workers)


def _batches(making: LoaderArguments) -> int | None:
    try:
        return math.ceil(len(making.dataset) / making.batch_size)
    except TypeError:
        return None
