"""Lets torch copy the batches of workers to page-locked memory, in its own thread, once the training uses CUDA."""

from __future__ import annotations

from typing import Any

from hotlap.loading.pure import Unfit, pure
from hotlap.loading.weight import weight_of
from hotlap.runtime.decline import EntryDeclined, no_effect
from hotlap.runtime.loader_arguments import LoaderArguments
from hotlap.runtime.site import Original, Site


def apply(site: Site) -> None:
    site.no_effect("no loader starts workers while the training uses CUDA")
    iterators = site.torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    site.replace(iterators, "__init__", lambda original, _, args, kwargs: _begin(site, original, args, kwargs))


def _begin(site: Site, original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Where workers start: the loader itself keeps its setting, and one whose data another entry keeps starts none."""
    loader = args[0] if args else kwargs["loader"]
    try:
        if not site.torch.cuda.is_initialized():
            raise no_effect("the training uses no CUDA yet")
        check(_making(site.torch, loader), bool(loader.pin_memory))
    except EntryDeclined as declined:
        site.decline(declined)
        return original(*args, **kwargs)
    vars(loader)["pin_memory"] = True
    try:
        outcome = original(*args, **kwargs)
    finally:
        vars(loader)["pin_memory"] = False
    site.applied(f"batches of {type(loader.dataset).__name__} from {loader.num_workers} workers")
    return outcome


def _making(torch: Any, loader: Any) -> LoaderArguments:
    names = ("dataset", "num_workers", "collate_fn", "batch_size", "sampler", "multiprocessing_context")
    given = {name: getattr(loader, name) for name in names}
    if loader.batch_sampler is not None:
        given |= {"batch_sampler": loader.batch_sampler, "batch_size": 1}
    return LoaderArguments(torch, given)


def check(making: LoaderArguments, pinned: bool) -> None:
    if pinned:
        raise no_effect(f"the loader of {making.name} pins already")
    if making.workers == 0:
        raise no_effect(f"without workers the training itself would copy the batches of {making.name} once more")
    if making.iterable:
        raise EntryDeclined(f"{making.name} is a stream: what its batches are made of is not known")
    if making.given.get("collate_fn") is not making.torch.utils.data.default_collate:
        raise EntryDeclined(f"{making.name} has a collate_fn of its own: pinning would make lists of its tuples")
    try:
        weight = weight_of(making.torch, making.dataset, pure(making.dataset))
    except Unfit as why:
        raise EntryDeclined(f"{making.name}: {why}") from None
    if not weight.on_host:
        raise EntryDeclined(f"{making.name} makes its samples on the device")
    if not weight.plain:
        raise EntryDeclined(f"the batches of {making.name} hold objects that torch may not pin as they are")
