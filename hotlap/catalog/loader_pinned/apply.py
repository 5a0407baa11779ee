"""Lets torch copy the batches of workers to page-locked memory, in its own thread, once the training uses CUDA."""

from __future__ import annotations

import weakref
from typing import Any

from hotlap.catalog.making import Making, NoEffect, Refused
from hotlap.catalog.site import Site
from hotlap.loading.pure import Unfit, pure
from hotlap.loading.weight import weight_of


def apply(site: Site) -> None:
    changed: weakref.WeakSet[Any] = weakref.WeakSet()
    site.before(site.seams.iterating, lambda loader, args, kwargs: _pin(site, loader, changed))
    site.ledger.later(lambda: _take_back(changed))


def _pin(site: Site, loader: Any, changed: weakref.WeakSet[Any]) -> None:
    """Before each epoch: a loader may be made before the model goes to the device."""
    if loader in changed or not site.torch.cuda.is_initialized():
        return
    try:
        check(_making(site.torch, loader), bool(loader.pin_memory), loader._iterator is not None)
    except NoEffect as why:
        site.no_effect(str(why))
    except Refused as why:
        site.refused(str(why))
    else:
        loader.pin_memory = True
        changed.add(loader)
        site.applied(f"batches of {type(loader.dataset).__name__} from {loader.num_workers} workers")


def _making(torch: Any, loader: Any) -> Making:
    names = ("dataset", "num_workers", "collate_fn", "batch_size", "sampler", "multiprocessing_context")
    given = {name: getattr(loader, name) for name in names}
    if loader.batch_sampler is not None:
        given |= {"batch_sampler": loader.batch_sampler, "batch_size": 1}
    return Making(torch, given)


def check(making: Making, pinned: bool, under_way: bool) -> None:
    if pinned:
        raise NoEffect(f"the loader of {making.name} pins already")
    if making.workers == 0:
        raise NoEffect(f"without workers the training itself would copy the batches of {making.name} once more")
    if under_way:
        raise NoEffect(f"the workers of {making.name} have started already")
    if making.iterable:
        raise Refused(f"{making.name} is a stream: what its batches are made of is not known")
    if making.given.get("collate_fn") is not making.torch.utils.data.default_collate:
        raise Refused(f"{making.name} has a collate_fn of its own: pinning would make lists of its tuples")
    try:
        weight = weight_of(making.torch, making.dataset, pure(making.dataset))
    except Unfit as why:
        raise Refused(f"{making.name}: {why}") from None
    if not weight.on_host:
        raise Refused(f"{making.name} makes its samples on the device")
    if not weight.plain:
        raise Refused(f"the batches of {making.name} hold objects that torch may not pin as they are")


def _take_back(changed: weakref.WeakSet[Any]) -> None:
    for loader in list(changed):
        loader.pin_memory = False
