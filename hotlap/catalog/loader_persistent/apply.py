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

from hotlap.catalog.loader_persistent.seeds import can_be_sent, send
from hotlap.catalog.main_script import why_not_twice
from hotlap.catalog.making import Making, NoEffect, OnceStarted, Refused, when_made
from hotlap.catalog.resident_data.contents import Contents
from hotlap.catalog.resident_data.names import Names
from hotlap.catalog.resident_data.proof import why_other
from hotlap.catalog.resident_data.sameness import Unfit
from hotlap.catalog.resident_data.streams import asks_which_worker
from hotlap.catalog.site import Original, Site
from hotlap.catalog.weighing import weigh

LOOKING = 0.05  # seconds of a processor, at each epoch
READ = 32 << 20  # bytes of tensors: what is written through an array that shares their memory moves no version


@dataclass(frozen=True)
class Kept:
    """An iterator that was read to its end, and what its workers were started with."""

    iterator: Any
    contents: Contents
    settings: tuple[Any, ...]


# Not in a site: a child made by fork closes those, and there an iterator that is let go would end its parent's workers.
_kept: weakref.WeakKeyDictionary[Any, Kept] = weakref.WeakKeyDictionary()


def apply(site: Site) -> None:
    keeping = Keeping(site)
    when_made(site, keeping.settings)
    site.stand_in(site.seams.iterating, keeping.iterate)
    site.ledger.later(keeping.close)


def _check(site: Site, making: Making) -> None:
    if making.workers == 0:
        raise NoEffect(f"{making.name} is loaded without workers")
    if making.given.get("persistent_workers"):
        raise NoEffect(f"the workers of {making.name} stay alive already")
    if making.iterable:
        raise Refused(f"{making.name} is a stream: what its workers keep from one epoch to the next is not known")
    _check_setup(making)
    if making.start_method != "fork" and (why := why_not_twice()) is not None:
        raise Refused(why)
    weight = weigh(making)
    if weight.problem is not None:
        raise Refused(f"{making.name}: {weight.problem}")
    if weight.random is not None and not weight.seeded and not site.asked:
        raise Refused(f"{making.name}: {weight.random}, also where workers are seeded alike; ask for it by name")
    try:
        contents_of(site.torch, making.dataset, making.given.get("collate_fn"))
    except Unfit as why:
        raise Refused(f"{making.name}: {why}") from None


def _check_setup(making: Making) -> None:
    """What a worker does when it starts, and the seed it starts with, belong to one epoch."""
    if making.given.get("worker_init_fn") is not None:
        raise Refused(f"{making.name}: workers that stay do not run its worker_init_fn anew at each epoch")
    if asks_which_worker(making.torch, making.dataset, making.given.get("collate_fn")):
        raise Refused(f"{making.name}: its code names get_worker_info, and workers that stay keep their seed")


class Keeping:
    """The loaders whose workers stay because of us."""

    def __init__(self, site: Site) -> None:
        self._site, self._owner = site, os.getpid()
        self._ours: weakref.WeakSet[Any] = weakref.WeakSet()
        self._started = OnceStarted(site)

    def settings(self, making: Making) -> dict[str, Any]:
        _check(self._site, making)
        self._ours.add(making.loader)
        self._started.say(making.dataset, f"workers of {making.name}")
        return {}

    def iterate(self, original: Original, loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if loader not in self._ours or loader.num_workers == 0 or loader.persistent_workers:
            return original(*args, **kwargs)
        if (why := why_other(loader.dataset)) is not None and not self._site.asked:
            self._ours.discard(loader)
            self._site.refused(f"{type(loader.dataset).__name__}: {why}, which came out later")
            _kept.pop(loader, None)
            return original(*args, **kwargs)
        try:
            contents = contents_of(self._site.torch, loader.dataset, loader.collate_fn)
        except Unfit:
            _kept.pop(loader, None)
            return original(*args, **kwargs)
        held, settings = vars(loader), (loader.num_workers, loader.prefetch_factor, loader.pin_memory)
        held["_iterator"] = self._again(loader, contents, settings)
        held["persistent_workers"] = True  # not by setattr, which torch forbids
        try:
            return original(*args, **kwargs)
        finally:
            iterator, held["_iterator"], held["persistent_workers"] = held["_iterator"], None, False
            if iterator is not None:
                _kept[loader] = Kept(iterator, contents, settings)

    def _again(self, loader: Any, contents: Contents, settings: tuple[Any, ...]) -> Any:
        """The iterator of the last epoch. Not one still being read: torch would give the same one to both readers."""
        kept = _kept.pop(loader, None)
        if kept is None or kept.settings != settings or contents.differ(kept.contents) or not finished(kept.iterator):
            return None
        if not can_be_sent(kept.iterator):
            return None
        send(kept.iterator, draw_as_if_new(self._site.torch, loader))
        return kept.iterator

    def close(self) -> None:
        """Workers end with the epoch under way."""
        if os.getpid() == self._owner:
            for loader in list(self._ours):
                _kept.pop(loader, None)


def contents_of(torch: Any, dataset: Any, collate: Any = None) -> Contents:
    return Contents(torch, dataset, names=Names(dataset, collate), most=LOOKING, read=READ)


def finished(iterator: Any) -> bool:
    """Whether an epoch was read to its end."""
    return bool(iterator._tasks_outstanding == 0 and iterator._rcvd_idx >= iterator._send_idx)


def draw_as_if_new(torch: Any, loader: Any) -> int:
    """What making an iterator draws: it asks the sampler once more than it needs, then draws the workers' seed."""
    iter(loader._index_sampler)
    return int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
