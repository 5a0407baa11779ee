"""Changing the arguments a DataLoader is made with; shared by the entries about loaders.

Accelerate, Lightning and HF Trainer make loaders from loaders: those pass here as well, with their own arguments.
"""

from __future__ import annotations

import inspect
import multiprocessing
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hotlap.loading.identity import AlsoOfLists
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.site import Site

# Their samplers are written to be read ahead of the training.
MADE_FOR_WORKERS = ("torch", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric", "transformers")


@dataclass(frozen=True)
class LoaderArguments:
    """A DataLoader about to be made, with its arguments by name."""

    torch: Any
    given: dict[str, Any]
    loader: Any = None  # its object, still empty

    @property
    def dataset(self) -> Any:
        return self.given["dataset"]

    @property
    def name(self) -> str:
        return type(self.dataset).__name__

    @property
    def workers(self) -> int:
        return int(self.given.get("num_workers", 0))

    @property
    def iterable(self) -> bool:
        return isinstance(self.dataset, self.torch.utils.data.IterableDataset)

    @property
    def in_order(self) -> bool:
        return bool(self.given.get("in_order", True))

    @property
    def batch_size(self) -> int:
        """Of a batch sampler its own; 1 where each item is a batch."""
        sampler = self.given.get("batch_sampler")
        size = self.given.get("batch_size", 1) if sampler is None else getattr(sampler, "batch_size", None)
        return size if isinstance(size, int) and size > 0 else 1

    @property
    def start_method(self) -> str:
        """As the workers will be started."""
        return start_method(self.given.get("multiprocessing_context"))

    def strange_sampler(self) -> str | None:
        """The name of a sampler that may not be read ahead: it could draw random numbers or look at the training."""
        for sampler in (self.given.get("batch_sampler"), self.given.get("sampler")):
            while sampler is not None:
                kind = type(sampler)
                plain = kind.__module__ in ("builtins", "numpy")
                if not plain and kind.__module__.partition(".")[0] not in MADE_FOR_WORKERS:
                    return kind.__name__
                sampler = (
                    None if plain else getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
                )
        return None


def when_made(site: Site, settings: Callable[[LoaderArguments], dict[str, Any]]) -> None:
    """settings(making) are the arguments to change, or it raises EntryDeclined."""
    torch = site.torch
    names = _positional(torch.utils.data.DataLoader)

    changed: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
    site.ledger.later(lambda: _take_back(changed))

    def instead(original: Callable[..., Any], loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if len(args) > len(names) or "dataset" not in given or not _accepted(given):
            return original(*args, **kwargs)  # torch says what is wrong
        try:
            changes = settings(LoaderArguments(torch, given, loader))
        except EntryDeclined as declined:
            site.decline(declined)
        else:
            outcome = original(**{**given, **changes})
            changed[loader] = _as_given(given, changes)
            return outcome
        return original(*args, **kwargs)

    site.stand_in(site.seams.loader_made, instead)


class WorkerStartNotice:
    """What is said of a dataset when workers for it start: where another entry keeps it, none do.

    Not of a loader, since a framework makes its own of the program's.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._said: AlsoOfLists[str] = AlsoOfLists()
        site.after(site.seams.iterating, self._iterated)

    def say(self, dataset: Any, what: str) -> None:
        self._said.put(dataset, what)

    def _iterated(self, loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any], iterator: Any) -> None:
        what = self._said.get(loader.dataset)
        if what is None:
            return
        if getattr(iterator, "_workers", None):
            self._site.applied(what)
        elif loader.num_workers:
            self._site.no_effect(f"{type(loader.dataset).__name__} is kept by another entry, so no workers start")


def _as_given(given: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The attributes that the loader would have without the changes."""
    without = {"num_workers": 0, "prefetch_factor": None, "multiprocessing_context": None}
    values = {name: given.get(name, without[name]) for name in changes}
    if {"num_workers", "prefetch_factor"} & set(changes) and given.get("prefetch_factor") is None:
        values["prefetch_factor"] = 2 if given.get("num_workers") else None  # as torch fills it in
    if "multiprocessing_context" in values:
        values["_DataLoader__multiprocessing_context"] = values.pop("multiprocessing_context")
    return values


def _take_back(changed: Mapping[Any, dict[str, Any]]) -> None:
    """Loaders live longer than the entry: from their next epoch on they are as the program made them."""
    for loader, values in list(changed.items()):
        vars(loader).update(values)  # not by setattr: torch forbids it for some
        if loader.num_workers == 0:
            loader.prefetch_factor = None  # as torch has it, whichever entry gave the workers


def _positional(loader: type) -> list[str]:
    parameters = inspect.signature(loader.__init__).parameters.values()  # type: ignore[misc]
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD][1:]


def _accepted(given: dict[str, Any]) -> bool:
    """Whether torch will accept what depends on workers; an error of the user's must stay one."""
    workers = given.get("num_workers", 0)
    if not isinstance(workers, int) or workers < 0:
        return False
    needs_workers = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
    return workers > 0 or not any(given.get(name) for name in needs_workers)


def start_method(context: Any) -> str:
    """Of workers, by their loader's multiprocessing_context. Asking multiprocessing would fix it for the program."""
    if isinstance(context, str):
        return context
    if context is not None:
        return str(context.get_start_method())
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]
