"""Keeps workers alive between epochs, with random numbers drawn as if they had been restarted.

A loader without persistent workers draws a base seed for them each epoch; one with persistent workers draws it once.
So it is drawn here, the order of the samples stays the same, and the workers are seeded with it. They hold a copy of
the dataset: if the program changes it between epochs, they are restarted as without hotlap. The loader keeps its
settings: it is persistent only while torch asks it for an iterator, so that any other code that reads or copies it sees
what the program made.
"""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from dataclasses import dataclass
from multiprocessing import process
from typing import Any

from hotlap.catalog.loader_persistent.idle_workers import end, has_room, hide_between_epochs, show
from hotlap.catalog.loader_persistent.noticing_calls import NoticingCalls, left_to_torch, under_way
from hotlap.catalog.loader_persistent.seeds import can_be_sent, send
from hotlap.catalog.loader_persistent.worker_warnings import WarningFlag
from hotlap.loading.pure import pure_but_for_draws
from hotlap.loading.state import Watch
from hotlap.loading.unsuited import Unfit, is_sampler_lazy
from hotlap.patch.forks import why_no_processes
from hotlap.runtime.decline import EntryDeclined, no_effect
from hotlap.runtime.loader_arguments import LoaderArguments, WorkerStartNotice, when_made
from hotlap.runtime.site import Original, Site

LOOKING_PAYS = 0.15  # seconds that starting workers takes
KEPT = 4  # loaders whose workers are idle at the same time, at most
OUR_WEAK = 1  # references of ours to an iterator
OURS = 2  # references to an iterator that the program has let go of: the record's, and that of the question
SOON = 16  # a loader not iterated while others were, this many times, may never be iterated again


@dataclass(frozen=True)
class LivingWorkers:
    """An iterator whose workers stay alive, and what they were started with."""

    iterator: Any
    watch: Watch
    settings: tuple[Any, ...]
    warned: WarningFlag
    epoch: int  # the last one read from them, by its number among those of all loaders


# Not on a site: a forked child closes its sites, and an iterator freed there would end its parent's workers.
_living_workers: weakref.WeakKeyDictionary[Any, LivingWorkers] = weakref.WeakKeyDictionary()

_epochs = itertools.count()  # begun on all loaders
_numbers_of_processes = process._process_counter  # type: ignore[attr-defined]


def apply(site: Site) -> None:
    loaders = PersistentLoaders(site)
    when_made(site, loaders.settings)
    site.stand_in(site.seams.iterating, loaders.iterate)
    site.ledger.later(loaders.close)


def _check(site: Site, arguments: LoaderArguments) -> None:
    if arguments.workers == 0:
        raise no_effect(f"{arguments.name} is loaded without workers")
    if arguments.given.get("persistent_workers"):
        raise no_effect(f"the workers of {arguments.name} already stay alive")
    if arguments.iterable:
        raise EntryDeclined(
            f"{arguments.name} is a stream: what its workers keep from one epoch to the next is unknown"
        )
    if arguments.start_method != "fork":
        raise EntryDeclined(
            f"{arguments.name}: its workers are not forked, so a warning shown only once in each cannot be seen"
        )
    if arguments.given.get("worker_init_fn") is not None:
        raise EntryDeclined(f"{arguments.name}: persistent workers do not run its worker_init_fn again each epoch")
    if (why := why_no_processes()) is not None:
        raise EntryDeclined(why)
    try:
        studies = pure_but_for_draws(arguments.dataset, arguments.given.get("collate_fn"))
    except Unfit as unfit:
        raise EntryDeclined(f"{arguments.name}: {unfit}") from None
    if any(study.opened for study in studies):
        raise EntryDeclined(
            f"{arguments.name}: its workers keep a file open, which may have been replaced by the next epoch"
        )


class PersistentLoaders:
    """The loaders whose workers this entry keeps alive."""

    def __init__(self, site: Site) -> None:
        self._site, self._owner = site, os.getpid()
        self._ours: weakref.WeakSet[Any] = weakref.WeakSet()
        self._started = WorkerStartNotice(site)
        self._calls = NoticingCalls(site, self.end_idle)

    def settings(self, arguments: LoaderArguments) -> dict[str, Any]:
        _check(self._site, arguments)
        self._calls.watch()
        self._ours.add(arguments.loader)
        self._started.say(arguments.dataset, f"workers of {arguments.name}")
        return {}

    def iterate(self, original: Original, loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        epoch = next(_epochs)
        if self._ours and (why := why_no_processes()) is not None:
            self._site.withdraw(why)  # ends idle workers, and torch those of an epoch under way
            return original(*args, **kwargs)
        if _living_workers and not has_room():
            self.end_idle()
        with left_to_torch():
            return self._iterate(epoch, original, loader, args, kwargs)

    def _iterate(
        self, epoch: int, original: Original, loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        settled = loader.num_workers == 0 or loader.persistent_workers or loader.worker_init_fn is not None
        if loader not in self._ours or settled or not is_sampler_lazy(loader):
            return original(*args, **kwargs)
        settings = (*_settings(loader), *_inherited(self._site.torch))
        living = self._again(loader, settings)
        try:
            watch = living.watch if living is not None else self._watch(loader)
        except Unfit:
            return original(*args, **kwargs)
        held, warned = vars(loader), WarningFlag() if living is None else living.warned
        held["_iterator"] = None if living is None else living.iterator
        held["persistent_workers"] = True  # not by setattr, which torch forbids
        held["worker_init_fn"] = warned
        if living is not None:
            show(living.iterator._workers)
        try:
            return original(*args, **kwargs)
        finally:
            iterator, held["_iterator"], held["persistent_workers"] = held["_iterator"], None, False
            held["worker_init_fn"] = None
            if iterator is not None:
                _living_workers[loader] = LivingWorkers(iterator, watch, settings, warned, epoch)
                hide_between_epochs(iterator, self._may_stay)

    def _watch(self, loader: Any) -> Watch:
        watch = Watch(self._site.torch, *pure_but_for_draws(loader.dataset, loader.collate_fn))
        watch.require_worth(LOOKING_PAYS)
        return watch

    def _again(self, loader: Any, settings: tuple[Any, ...]) -> LivingWorkers | None:
        """Return the last epoch's workers if they can be reused, ending them if something has changed.

        Not while that epoch is still being read: torch would give the same iterator to both readers.
        """
        living = _living_workers.pop(loader, None)
        if living is None or not finished(living.iterator):
            return None
        if (
            sys.getrefcount(living.iterator) > OURS
            or living.settings != settings
            or living.warned
            or not all(worker.is_alive() for worker in living.iterator._workers)
            or not can_be_sent(living.iterator)
            or living.iterator._dataset is not loader.dataset
            or living.watch.changed_at_epoch() is not None
        ):
            end(living.iterator)  # as torch does at the end of an epoch
            return None
        send(living.iterator, draw_as_if_new(self._site.torch, loader))
        for _ in living.iterator._workers:
            next(_numbers_of_processes)  # new workers would have taken them
        return living

    def _may_stay(self, iterator: Any) -> bool:
        """Return whether workers whose epoch ends may wait for the next one; if not, torch ends them now."""
        return bool(self._site.seams.guard.run("keeping idle workers", self._keep, iterator))

    def _keep(self, iterator: Any) -> bool:
        loader = next((loader for loader, living in _all_living() if living.iterator is iterator), None)
        if loader is None or self._site.closed or os.getpid() != self._owner:
            return False
        if weakref.getweakrefcount(iterator) > OUR_WEAK:  # it waits for the iterator to be freed
            _living_workers.pop(loader, None)
            return False
        if under_way() or not has_room():
            self.end_idle()
            return False
        idle = self._idle()
        latest = max(living.epoch for _, living in idle)
        for place, (other, living) in enumerate(reversed(idle)):
            if place >= KEPT or latest - living.epoch > SOON:
                _end(other, living)
        return True

    def _idle(self) -> list[tuple[Any, LivingWorkers]]:
        """Return the loaders whose workers are idle, the one iterated last at the end."""
        return [(loader, living) for loader, living in _all_living() if finished(living.iterator)]

    def end_idle(self) -> None:
        """End the workers that are idle in this process."""
        if os.getpid() == self._owner:
            for loader, living in self._idle():
                _end(loader, living)

    def close(self) -> None:
        """End idle workers; busy ones end with the epoch under way."""
        self.end_idle()
        if os.getpid() == self._owner:
            for loader in list(self._ours):
                _living_workers.pop(loader, None)


def _settings(loader: Any) -> tuple[Any, ...]:
    return loader.num_workers, loader.prefetch_factor, loader.pin_memory, loader.timeout, loader.collate_fn


def _inherited(torch: Any) -> tuple[Any, ...]:
    """Return what new workers inherit of this thread and process, besides what their data is made from."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), os.getcwd()  # noqa: PTH109 of this process


def _all_living() -> list[tuple[Any, LivingWorkers]]:
    """Return all loaders whose workers are alive; another thread may add or end some meanwhile."""
    loaders = [loader for reference in _living_workers.keyrefs() if (loader := reference()) is not None]
    return [(loader, living) for loader in loaders if (living := _living_workers.get(loader)) is not None]


def _end(loader: Any, living: LivingWorkers) -> None:
    """End workers, unless another thread has just begun to read from them or ends them."""
    if _living_workers.pop(loader, None) is living:
        end(living.iterator)


def finished(iterator: Any) -> bool:
    """Return whether the iterator's epoch was read to its end."""
    return bool(iterator._tasks_outstanding == 0 and iterator._rcvd_idx >= iterator._send_idx)


def draw_as_if_new(torch: Any, loader: Any) -> int:
    """Draw what making an iterator draws, and return the workers' seed; torch also calls the sampler once too often."""
    iter(loader._index_sampler)
    return int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
