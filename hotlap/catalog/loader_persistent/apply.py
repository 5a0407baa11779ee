"""Keeps workers alive between epochs, with the random numbers drawn as if they had been started anew.

A loader without persistent workers draws a base seed for them each epoch; one with persistent workers draws it once.
So it is drawn here, the order of the samples stays the same, and the workers are seeded with it. They hold a copy of
the dataset: where the program changes it between epochs, they are started anew as without us. The loader keeps its
settings: it is persistent only while torch asks it for an iterator, so that whatever else looks at it or copies it sees
what the program made.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import Any

from hotlap.catalog.loader_persistent.idle_workers import hide_between_epochs, show
from hotlap.catalog.loader_persistent.seeds import can_be_sent, send
from hotlap.catalog.loader_persistent.worker_warnings import WarningFlag
from hotlap.loading.pure import Unfit, Watch, pure_but_for_draws
from hotlap.patch.forks import why_no_processes
from hotlap.runtime.decline import EntryDeclined, no_effect
from hotlap.runtime.loader_arguments import LoaderArguments, WorkerStartNotice, when_made
from hotlap.runtime.site import Original, Site

LOOKING_PAYS = 0.15  # seconds, which it takes to start workers


@dataclass(frozen=True)
class LivingWorkers:
    """An iterator that was read to its end, and what its workers were started with."""

    iterator: Any
    watch: Watch
    settings: tuple[Any, ...]
    warned: WarningFlag


# Not in a site: a child made by fork closes those, and there an iterator that is let go would end its parent's workers.
_kept: weakref.WeakKeyDictionary[Any, LivingWorkers] = weakref.WeakKeyDictionary()


def apply(site: Site) -> None:
    keeping = PersistentLoaders(site)
    when_made(site, keeping.settings)
    site.stand_in(site.seams.iterating, keeping.iterate)
    site.ledger.later(keeping.close)


def _check(site: Site, making: LoaderArguments) -> None:
    if making.workers == 0:
        raise no_effect(f"{making.name} is loaded without workers")
    if making.given.get("persistent_workers"):
        raise no_effect(f"the workers of {making.name} stay alive already")
    if making.iterable:
        raise EntryDeclined(f"{making.name} is a stream: what its workers keep from one epoch to the next is not known")
    if making.start_method != "fork":
        raise EntryDeclined(
            f"{making.name}: its workers are no forks: whether its items warn, once in each, is not seen"
        )
    if making.given.get("worker_init_fn") is not None:
        raise EntryDeclined(f"{making.name}: workers that stay do not run its worker_init_fn anew at each epoch")
    if (why := why_no_processes()) is not None:
        raise EntryDeclined(why)
    try:
        studies = pure_but_for_draws(making.dataset, making.given.get("collate_fn"))
    except Unfit as unfit:
        raise EntryDeclined(f"{making.name}: {unfit}") from None
    if any(study.opened for study in studies):
        raise EntryDeclined(
            f"{making.name}: its workers open a file and keep it, which may be another in the next epoch"
        )


class PersistentLoaders:
    """The loaders whose workers stay because of us."""

    def __init__(self, site: Site) -> None:
        self._site, self._owner = site, os.getpid()
        self._ours: weakref.WeakSet[Any] = weakref.WeakSet()
        self._started = WorkerStartNotice(site)

    def settings(self, making: LoaderArguments) -> dict[str, Any]:
        _check(self._site, making)
        self._ours.add(making.loader)
        self._started.say(making.dataset, f"workers of {making.name}")
        return {}

    def iterate(self, original: Original, loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        settled = loader.num_workers == 0 or loader.persistent_workers or loader.worker_init_fn is not None
        if loader not in self._ours or settled:
            return original(*args, **kwargs)
        settings = (loader.num_workers, loader.prefetch_factor, loader.pin_memory, loader.timeout, loader.collate_fn)
        kept = self._again(loader, settings)
        try:
            watch = kept.watch if kept is not None else self._watch(loader)
        except Unfit:
            return original(*args, **kwargs)
        held, warned = vars(loader), WarningFlag() if kept is None else kept.warned
        held["_iterator"] = None if kept is None else kept.iterator
        held["persistent_workers"] = True  # not by setattr, which torch forbids
        held["worker_init_fn"] = warned
        if kept is not None:
            show(kept.iterator._workers)
        try:
            return original(*args, **kwargs)
        finally:
            iterator, held["_iterator"], held["persistent_workers"] = held["_iterator"], None, False
            held["worker_init_fn"] = None
            if iterator is not None:
                _kept[loader] = LivingWorkers(iterator, watch, settings, warned)
                hide_between_epochs(iterator)

    def _watch(self, loader: Any) -> Watch:
        watch = Watch(self._site.torch, *pure_but_for_draws(loader.dataset, loader.collate_fn))
        watch.require_worth(LOOKING_PAYS)
        return watch

    def _again(self, loader: Any, settings: tuple[Any, ...]) -> LivingWorkers | None:
        """Of the last epoch. Not where it is still being read: torch would give the same one to both readers."""
        kept = _kept.pop(loader, None)
        if kept is None or not finished(kept.iterator):
            return None
        if (
            kept.settings != settings
            or kept.warned
            or not can_be_sent(kept.iterator)
            or kept.iterator._dataset is not loader.dataset
            or kept.watch.changed_at_epoch() is not None
        ):
            kept.iterator._shutdown_workers()  # as torch does at the end of an epoch
            return None
        send(kept.iterator, draw_as_if_new(self._site.torch, loader))
        return kept

    def close(self) -> None:
        """Workers end with the epoch under way."""
        if os.getpid() == self._owner:
            for loader in list(self._ours):
                kept = _kept.pop(loader, None)
                if kept is not None and finished(kept.iterator):
                    kept.iterator._shutdown_workers()


def finished(iterator: Any) -> bool:
    """Whether an epoch was read to its end."""
    return bool(iterator._tasks_outstanding == 0 and iterator._rcvd_idx >= iterator._send_idx)


def draw_as_if_new(torch: Any, loader: Any) -> int:
    """What making an iterator draws: it asks the sampler once more than it needs, then draws the workers' seed."""
    iter(loader._index_sampler)
    return int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
