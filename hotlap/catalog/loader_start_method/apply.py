"""Starts workers without forking the training where a fork would not be safe."""

from __future__ import annotations

import multiprocessing
import pickle
import weakref
from multiprocessing import forkserver
from typing import Any

from hotlap.loading.pure import Unfit, pure, pure_collate
from hotlap.runtime.decline import EntryDeclined, no_effect
from hotlap.runtime.loader_arguments import LoaderArguments, when_made
from hotlap.runtime.main_script import why_not_twice
from hotlap.runtime.site import Original, Site

CLEAN = "forkserver"  # forks from a process that knows nothing of the device
NOTHING_SAID = ["__main__"]  # as Python begins
CHANGES_WHAT_IS_SENT = ("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__")


def apply(site: Site) -> None:
    starting = WorkerStarter(site)
    site.no_effect("no loader starts workers")
    when_made(site, starting.made)
    site.replace(site.torch.utils.data.dataloader._MultiProcessingDataLoaderIter, "__init__", starting.begin)
    site.ledger.later(starting.take_back)


class WorkerStarter:
    """Decides when workers start, not when a loader is made: trying it takes seconds, and a loader whose data another
    entry keeps starts none.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._given: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._changed: weakref.WeakSet[Any] = weakref.WeakSet()

    def made(self, making: LoaderArguments) -> dict[str, Any]:
        self._given[making.loader] = making.given
        return {}

    def begin(self, original: Original, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        loader = args[0] if args else kwargs["loader"]
        given = self._given.get(loader)
        if given is not None and loader not in self._changed:
            try:
                self._choose(loader, LoaderArguments(self._site.torch, given))
            except EntryDeclined as declined:
                self._site.decline(declined)
        return original(*args, **kwargs)

    def _choose(self, loader: Any, making: LoaderArguments) -> None:
        if loader.multiprocessing_context is not None:
            raise no_effect(f"the loader of {making.name} names its start method itself")
        method = self._site.value or found(self._site, making)
        if method == CLEAN:
            import_torch_once()
        _check(making, method)
        loader.multiprocessing_context = method
        self._changed.add(loader)
        self._site.applied(f"workers of {making.name} by {method}")

    def take_back(self) -> None:
        """From their next workers on they are as the program made them."""
        for loader in list(self._changed):
            loader.multiprocessing_context = None


def import_torch_once() -> None:
    """By the process that workers are forked from, not by each of them: unless it runs by now, or the program has said
    what it imports.
    """
    server: Any = getattr(forkserver, "_forkserver", None)
    if getattr(server, "_forkserver_pid", 0) is None and getattr(server, "_preload_modules", None) == NOTHING_SAID:
        multiprocessing.set_forkserver_preload([*NOTHING_SAID, "torch.utils.data"])


def found(site: Site, making: LoaderArguments) -> str:
    """Not by fork once the device is in use."""
    if making.start_method != "fork":
        raise no_effect(f"workers start by {making.start_method} already")
    if site.torch.cuda.is_initialized():
        return CLEAN
    raise no_effect("a fork is safe here: CUDA is not in use")


def _check(making: LoaderArguments, method: str) -> None:
    before = making.start_method
    if method == before:
        raise no_effect(f"workers start by {method} already")
    if method not in multiprocessing.get_all_start_methods():
        raise EntryDeclined(f"this system starts no process by {method}")
    if method == "fork":
        raise EntryDeclined(f"this program starts its workers by {before}; forking it may not be safe")
    if making.iterable:
        raise EntryDeclined(f"{making.name} is a stream: it cannot be tried beforehand")
    why = why_not_twice()
    if why is not None:
        raise EntryDeclined(why)
    try:
        known = pure(making.dataset)
        if (collate := making.given.get("collate_fn")) is not None:
            pure_collate(collate, known)
        pickle.dumps((making.dataset, making.given.get("collate_fn")))
    except Unfit as unfit:
        raise EntryDeclined(f"{making.name}: {unfit}") from None
    except Exception as error:
        what = f"it cannot be sent to a process started by {method} ({type(error).__name__}: {error})"
        raise EntryDeclined(f"{making.name}: {what}") from error
    if any(name in vars(kind) for kind in type(making.dataset).__mro__[:-1] for name in CHANGES_WHAT_IS_SENT):
        raise EntryDeclined(f"{making.name} changes what is sent of it to another process")
