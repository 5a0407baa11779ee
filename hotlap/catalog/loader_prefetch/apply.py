"""Makes a few workers prepare more batches ahead, so that the training need not wait for a slow one."""

from __future__ import annotations

from typing import Any

from hotlap import machine
from hotlap.loading.pure import pure, pure_collate
from hotlap.loading.unsuited import Unfit
from hotlap.loading.weight import weight_of
from hotlap.runtime.decline import EntryDeclined, no_effect
from hotlap.runtime.loader_arguments import LoaderArguments, WorkerStartNotice, when_made
from hotlap.runtime.site import Site

READY = 8  # batches under way in all workers together
DEFAULT = 2  # torch's own depth
NESTED = 4  # depth of samplers in samplers


def apply(site: Site) -> None:
    started = WorkerStartNotice(site)
    when_made(site, lambda arguments: _settings(site, arguments, started))


def _settings(site: Site, arguments: LoaderArguments, started: WorkerStartNotice) -> dict[str, Any]:
    _check(site, arguments)
    has = arguments.given.get("prefetch_factor") or DEFAULT
    depth = site.value if site.value is not None else -(-READY // arguments.workers)
    if depth <= has:
        raise no_effect(f"{arguments.name}: each of {arguments.workers} workers already prepares {has} batches ahead")
    try:
        known = pure(arguments.dataset)
        if (collate := arguments.given.get("collate_fn")) is not None:
            pure_collate(collate, known)
        weight = weight_of(arguments.torch, arguments.dataset, known)
    except Unfit as why:
        raise EntryDeclined(f"{arguments.name}: {why}") from None
    depth = _within_memory(arguments, weight.item_bytes * arguments.batch_size, has, depth)
    report = f"{arguments.name}: {has} → {depth} batches ahead in each of {arguments.workers} workers"
    started.say(arguments.dataset, report)
    return {"prefetch_factor": depth}


def _check(site: Site, arguments: LoaderArguments) -> None:
    if arguments.workers == 0:
        raise no_effect(f"{arguments.name} is loaded without workers")
    if arguments.iterable:
        raise EntryDeclined(f"{arguments.name} is a stream: the memory that more of its batches take is unknown")
    if not arguments.in_order:
        raise EntryDeclined(
            f"the loader of {arguments.name} delivers batches as they get ready, an order that would change"
        )
    if draws_from_its_own(arguments):
        raise no_effect(
            f"{arguments.name}: its loader or sampler has its own generator, from which it would draw earlier"
        )
    strange = arguments.strange_sampler()
    if strange is not None and not site.asked:
        raise EntryDeclined(f"the sampler {strange} would be read further ahead of the training; ask for it by name")


def draws_from_its_own(arguments: LoaderArguments) -> bool:
    """Return whether the order comes from a generator that the program may also use, even during the epoch."""
    if arguments.given.get("generator") is not None:
        return True
    waiting = [arguments.given.get("batch_sampler"), arguments.given.get("sampler")]
    for _ in range(NESTED):
        held = [value for sampler in waiting for value in getattr(sampler, "__dict__", {}).values()]
        if any(isinstance(value, arguments.torch.Generator) for value in held):
            return True
        waiting = [value for value in held if isinstance(value, arguments.torch.utils.data.Sampler)]
    return False


def _within_memory(arguments: LoaderArguments, batch_bytes: int, has: int, depth: int) -> int:
    while depth > has and machine.workers_by_memory(batch_bytes, depth) < arguments.workers:
        depth -= 1
    if depth == has:
        raise EntryDeclined(f"{arguments.name}: there is not enough memory for more than {has} batches per worker")
    return depth
