"""Changes the arguments that a DataLoader is made with; shared by the entries about loaders.

Accelerate, Lightning and HF Trainer make loaders from loaders: those pass through here too, with their own arguments.
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
    """The arguments, by name, of a DataLoader that is about to be made."""

    torch: Any
    given: dict[str, Any]
    loader: Any = None  # the DataLoader itself, not yet initialised

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
        """The batch size, or that of the batch sampler; 1 if each item is a batch."""
        sampler = self.given.get("batch_sampler")
        size = self.given.get("batch_size", 1) if sampler is None else getattr(sampler, "batch_size", None)
        return size if isinstance(size, int) and size > 0 else 1

    @property
    def start_method(self) -> str:
        """The start method of the workers."""
        return start_method(self.given.get("multiprocessing_context"))

    def strange_sampler(self) -> str | None:
        """Return the name of a sampler that must not be read ahead: it may draw random numbers or watch training."""
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
    """Change each loader by `settings(arguments)`, which returns the arguments to change or raises EntryDeclined."""
    torch = site.torch
    names = _positional(torch.utils.data.DataLoader)

    changed: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
    site.ledger.later(lambda: _take_back(changed))

    def instead(original: Callable[..., Any], loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if len(args) > len(names) or "dataset" not in given or not _accepted(given):
            return original(*args, **kwargs)  # torch reports the error
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
    """Reports an entry as applied once workers start for a dataset: if another entry caches it, none do.

    It is kept by dataset rather than by loader, since a framework makes its own loaders from the program's.
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
            self._site.no_effect(
                f"{type(loader.dataset).__name__} is cached by another optimisation, so no workers start"
            )


def _as_given(given: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that the loader would have without the changes."""
    without = {"num_workers": 0, "prefetch_factor": None, "multiprocessing_context": None}
    values = {name: given.get(name, without[name]) for name in changes}
    if {"num_workers", "prefetch_factor"} & set(changes) and given.get("prefetch_factor") is None:
        values["prefetch_factor"] = 2 if given.get("num_workers") else None  # torch's default
    if "multiprocessing_context" in values:
        values["_DataLoader__multiprocessing_context"] = values.pop("multiprocessing_context")
    return values


def _take_back(changed: Mapping[Any, dict[str, Any]]) -> None:
    """Restore the loaders, which outlive the entry; from their next epoch on they are as the program made them."""
    for loader, values in list(changed.items()):
        vars(loader).update(values)  # not by setattr: torch forbids it for some
        if loader.num_workers == 0:
            loader.prefetch_factor = None  # as torch sets it, whichever entry added the workers


def _positional(loader: type) -> list[str]:
    parameters = inspect.signature(loader.__init__).parameters.values()  # type: ignore[misc]
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD][1:]


def _accepted(given: dict[str, Any]) -> bool:
    """Return whether torch accepts the arguments that depend on workers; a user's error must remain one."""
    workers = given.get("num_workers", 0)
    if not isinstance(workers, int) or workers < 0:
        return False
    needs_workers = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
    return workers > 0 or not any(given.get(name) for name in needs_workers)


def start_method(context: Any) -> str:
    """Return the start method for a loader's multiprocessing_context, without fixing multiprocessing's default."""
    if isinstance(context, str):
        return context
    if context is not None:
        return str(context.get_start_method())
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]
