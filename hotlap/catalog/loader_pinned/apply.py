"""Makes torch copy the workers' batches to page-locked memory, in its own thread, once the training uses CUDA."""

from __future__ import annotations

from typing import Any

from hotlap.loading.pure import pure
from hotlap.loading.unsuited import Unfit
from hotlap.loading.weight import weight_of
from hotlap.runtime.decline import EntryDeclined, no_effect
from hotlap.runtime.loader_arguments import LoaderArguments
from hotlap.runtime.site import Original, Site


def apply(site: Site) -> None:
    site.no_effect("no loader starts workers while the training uses CUDA")
    iterators = site.torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    site.replace(iterators, "__init__", lambda original, _, args, kwargs: _begin(site, original, args, kwargs))


def _begin(site: Site, original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Turn pinning on when workers start, without changing the loader; cached datasets start no workers."""
    loader = args[0] if args else kwargs["loader"]
    try:
        if not site.torch.cuda.is_initialized():
            raise no_effect("the training does not use CUDA yet")
        check(_arguments_of(site.torch, loader), bool(loader.pin_memory))
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


def _arguments_of(torch: Any, loader: Any) -> LoaderArguments:
    names = ("dataset", "num_workers", "collate_fn", "batch_size", "sampler", "multiprocessing_context")
    given = {name: getattr(loader, name) for name in names}
    if loader.batch_sampler is not None:
        given |= {"batch_sampler": loader.batch_sampler, "batch_size": 1}
    return LoaderArguments(torch, given)


def check(arguments: LoaderArguments, pinned: bool) -> None:
    if pinned:
        raise no_effect(f"the loader of {arguments.name} already pins its batches")
    if arguments.workers == 0:
        raise no_effect(
            f"without workers the training thread itself would have to copy the batches of {arguments.name}"
        )
    if arguments.iterable:
        raise EntryDeclined(f"{arguments.name} is a stream: what its batches are made of is unknown")
    if arguments.given.get("collate_fn") is not arguments.torch.utils.data.default_collate:
        raise EntryDeclined(f"{arguments.name} has a custom collate_fn: pinning would turn its tuples into lists")
    try:
        weight = weight_of(arguments.torch, arguments.dataset, pure(arguments.dataset))
    except Unfit as why:
        raise EntryDeclined(f"{arguments.name}: {why}") from None
    if not weight.on_host:
        raise EntryDeclined(f"{arguments.name} creates its samples on the device")
    if not weight.plain:
        raise EntryDeclined(f"the batches of {arguments.name} hold objects that pinning may change")
