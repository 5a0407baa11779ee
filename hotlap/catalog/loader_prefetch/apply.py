"""Lets few workers make more batches ahead, so that a slow one is not waited for."""

from __future__ import annotations

from typing import Any

from hotlap import machine
from hotlap.loading.pure import Unfit, pure, pure_collate
from hotlap.loading.weight import weight_of
from hotlap.runtime.decline import EntryDeclined, no_effect
from hotlap.runtime.loader_arguments import LoaderArguments, WorkerStartNotice, when_made
from hotlap.runtime.site import Site

READY = 8  # batches under way in all workers together
DEFAULT = 2  # torch's own depth
NESTED = 4  # samplers in samplers


def apply(site: Site) -> None:
    started = WorkerStartNotice(site)
    when_made(site, lambda making: _settings(site, making, started))


def _settings(site: Site, making: LoaderArguments, started: WorkerStartNotice) -> dict[str, Any]:
    _check(site, making)
    has = making.given.get("prefetch_factor") or DEFAULT
    depth = site.value if site.value is not None else -(-READY // making.workers)
    if depth <= has:
        raise no_effect(f"{making.name}: {making.workers} workers have {has} batches under way each already")
    try:
        known = pure(making.dataset)
        if (collate := making.given.get("collate_fn")) is not None:
            pure_collate(collate, known)
        weight = weight_of(making.torch, making.dataset, known)
    except Unfit as why:
        raise EntryDeclined(f"{making.name}: {why}") from None
    depth = _within_memory(making, weight.item_bytes * making.batch_size, has, depth)
    said = f"{making.name}: {has} → {depth} batches ahead in each of {making.workers} workers"
    started.say(making.dataset, said)
    return {"prefetch_factor": depth}


def _check(site: Site, making: LoaderArguments) -> None:
    if making.workers == 0:
        raise no_effect(f"{making.name} is loaded without workers")
    if making.iterable:
        raise EntryDeclined(f"{making.name} is a stream: how much memory more of its batches take is not known")
    if not making.in_order:
        raise EntryDeclined(
            f"the loader of {making.name} gives batches in the order they are ready, which would change"
        )
    if draws_from_its_own(making):
        raise no_effect(f"{making.name}: its loader or sampler has a generator, which would be drawn from earlier")
    strange = making.strange_sampler()
    if strange is not None and not site.asked:
        raise EntryDeclined(f"the sampler {strange} would be read further ahead of the training; ask for it by name")


def draws_from_its_own(making: LoaderArguments) -> bool:
    """Whether an order is drawn from a generator that the program may use besides, also while the epoch goes on."""
    if making.given.get("generator") is not None:
        return True
    waiting = [making.given.get("batch_sampler"), making.given.get("sampler")]
    for _ in range(NESTED):
        held = [value for sampler in waiting for value in getattr(sampler, "__dict__", {}).values()]
        if any(isinstance(value, making.torch.Generator) for value in held):
            return True
        waiting = [value for value in held if isinstance(value, making.torch.utils.data.Sampler)]
    return False


def _within_memory(making: LoaderArguments, batch_bytes: int, has: int, depth: int) -> int:
    while depth > has and machine.workers_by_memory(batch_bytes, depth) < making.workers:
        depth -= 1
    if depth == has:
        raise EntryDeclined(f"{making.name}: memory has no room for more than {has} batches in each worker")
    return depth
