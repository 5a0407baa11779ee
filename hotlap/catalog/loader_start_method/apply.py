"""Starts workers without forking the training process where a fork would not be safe."""

from __future__ import annotations

import multiprocessing
import pickle
import weakref
from multiprocessing import forkserver
from typing import Any

from hotlap.loading.pure import pure, pure_collate
from hotlap.loading.unsuited import Unfit
from hotlap.runtime.decline import EntryDeclined, no_effect
from hotlap.runtime.loader_arguments import LoaderArguments, when_made
from hotlap.runtime.main_script import why_not_twice
from hotlap.runtime.site import Original, Site

CLEAN = "forkserver"  # forks from a process that has not used the device
DEFAULT_PRELOAD = ["__main__"]  # Python's own
CHANGES_WHAT_IS_SENT = ("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__")


def apply(site: Site) -> None:
    starter = WorkerStarter(site)
    site.no_effect("no loader starts workers")
    when_made(site, starter.made)
    site.replace(site.torch.utils.data.dataloader._MultiProcessingDataLoaderIter, "__init__", starter.begin)
    site.ledger.later(starter.take_back)


class WorkerStarter:
    """Chooses the start method when workers start, not when a loader is made: the check takes seconds, and a loader
    whose dataset is cached by another entry starts none.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._given: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._changed: weakref.WeakSet[Any] = weakref.WeakSet()

    def made(self, arguments: LoaderArguments) -> dict[str, Any]:
        self._given[arguments.loader] = arguments.given
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

    def _choose(self, loader: Any, arguments: LoaderArguments) -> None:
        if loader.multiprocessing_context is not None:
            raise no_effect(f"the loader of {arguments.name} already names its start method")
        method = self._site.value or found(self._site, arguments)
        if method == CLEAN:
            import_torch_once()
        _check(arguments, method)
        loader.multiprocessing_context = method
        self._changed.add(loader)
        self._site.applied(f"workers of {arguments.name} started by {method}")

    def take_back(self) -> None:
        """Restore the loaders, so that their next workers start as the program chose."""
        for loader in list(self._changed):
            loader.multiprocessing_context = None


def import_torch_once() -> None:
    """Make the fork server import torch once, instead of each worker, unless it already runs or the program has chosen
    its imports.
    """
    server: Any = getattr(forkserver, "_forkserver", None)
    if getattr(server, "_forkserver_pid", 0) is None and getattr(server, "_preload_modules", None) == DEFAULT_PRELOAD:
        multiprocessing.set_forkserver_preload([*DEFAULT_PRELOAD, "torch.utils.data"])


def found(site: Site, arguments: LoaderArguments) -> str:
    """Return the start method to use if the user named none: no fork once CUDA is in use."""
    if arguments.start_method != "fork":
        raise no_effect(f"workers are already started by {arguments.start_method}")
    if site.torch.cuda.is_initialized():
        return CLEAN
    raise no_effect("forking is safe here: CUDA is not in use")


def _check(arguments: LoaderArguments, method: str) -> None:
    before = arguments.start_method
    if method == before:
        raise no_effect(f"workers are already started by {method}")
    if method not in multiprocessing.get_all_start_methods():
        raise EntryDeclined(f"this system cannot start processes by {method}")
    if method == "fork":
        raise EntryDeclined(f"this program starts its workers by {before}; forking may not be safe")
    if arguments.iterable:
        raise EntryDeclined(f"{arguments.name} is a stream, which cannot be tried beforehand")
    why = why_not_twice()
    if why is not None:
        raise EntryDeclined(why)
    try:
        known = pure(arguments.dataset)
        if (collate := arguments.given.get("collate_fn")) is not None:
            pure_collate(collate, known)
        pickle.dumps((arguments.dataset, arguments.given.get("collate_fn")))
    except Unfit as unfit:
        raise EntryDeclined(f"{arguments.name}: {unfit}") from None
    except Exception as error:
        what = f"it cannot be sent to a process started by {method} ({type(error).__name__}: {error})"
        raise EntryDeclined(f"{arguments.name}: {what}") from error
    if any(name in vars(kind) for kind in type(arguments.dataset).__mro__[:-1] for name in CHANGES_WHAT_IS_SENT):
        raise EntryDeclined(f"{arguments.name} customises how it is pickled")
