"""The caches of datasets: made when a loader is first iterated, checked before each epoch, reported, dropped."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from hotlap.catalog.resident_data.custom_collate import stored
from hotlap.catalog.resident_data.store import AT_FIRST, EAGER, SHARE_OF_MEMORY, Store, host_memory, megabytes
from hotlap.loading.identity import AlsoOfLists
from hotlap.loading.pure import RepeatedClasses, levels_of
from hotlap.loading.purity.plain import same_atom
from hotlap.loading.unsuited import Unfit
from hotlap.patch.voice import say
from hotlap.runtime.loader_arguments import start_method
from hotlap.runtime.site import Site

if TYPE_CHECKING:
    from hotlap.catalog.resident_data.device_leaves import DeviceLeaves

SHARE_WHEN_REQUESTED = 0.9  # of the free device memory, if the value "device" was given
MOST_REPORTED = 3  # datasets: a training and a validation set, and perhaps a test set
LITTLE = 0.1  # of the items: a loader that drops its last batch never shows this many in an epoch
MOST_COLLATES = 2  # of a dataset: each has its own store


@dataclass
class DatasetRows:
    """The cache of one dataset under one collate_fn; without a store it could not be cached."""

    collate: Weakly
    store: Store | None
    reported: str = ""
    requested: bool = False  # read for one epoch
    again: bool = False  # read for another epoch
    read: bool = False  # some batch was made from it
    by_place: dict[Any, DeviceLeaves] = field(default_factory=dict)

    def is_for(self, collate: Any) -> bool:
        """Return whether it serves this collate_fn. Without a store, its own collate_fn may have been freed."""
        mine = self.collate() if self.store is None else self.store.collate
        return mine is not None and same_function(mine, collate)


class Caches:
    """The caches of all datasets that are read."""

    def __init__(self, site: Site) -> None:
        self.site, self.torch = site, site.torch
        self.busy = False  # a dataset may read a loader of its own
        self._stores: AlsoOfLists[list[DatasetRows]] = AlsoOfLists()
        self._reports: dict[int, str] = {}
        self._often = RepeatedClasses()

    def clear(self) -> None:
        self._stores.clear()

    def find(self, dataset: Any, collate: Any) -> DatasetRows | None:
        return next((rows for rows in self._stores.get(dataset) or [] if rows.is_for(collate)), None)

    def of(self, loader: Any, in_workers: bool) -> DatasetRows | None:
        """Return the cache of a loader's dataset, ready to be read; without a store, the dataset cannot be cached."""
        dataset, collate = loader.dataset, loader.collate_fn
        caches = self._stores.get(dataset)
        if caches is None:
            if (why := self._often.why_not(type(dataset))) is not None:
                self.site.no_effect(f"{type(dataset).__name__}: {why}")
                return None
            caches = []
            self._stores.put(dataset, caches)
        cache = self.find(dataset, collate)
        if cache is None and len(caches) >= MOST_COLLATES:
            self._give_up(caches)
            return None
        self.busy = True
        try:
            if cache is None:
                cache = self._new_cache(dataset, collate, loader)
                caches.append(cache)
            elif cache.store is not None:
                self.check(dataset, cache, cache.store, in_workers=in_workers)
            if cache.store is not None and cache.store.collate is not collate:
                self._renew(cache, cache.store, collate)
            if cache.store is not None and loader.num_workers:
                self._own(cache, cache.store)
            if cache.store is not None and not loader.num_workers:
                self._watch_closely(loader, cache, cache.store)
            if cache.store is not None and cache.store.missing:
                self._fill(loader, cache, cache.store)
            self._count(type(dataset), cache)
        finally:
            self.busy = False
        return cache

    def _new_cache(self, dataset: Any, collate: Any, loader: Any) -> DatasetRows:
        try:
            store = stored(self.torch, dataset, collate)
            store.require_worth(loader)
            store.on_waited = self._waited
            return DatasetRows(Weakly(collate), store)
        except Unfit as unfit:
            self.site.refused(f"{type(dataset).__name__}: {unfit}")
            return DatasetRows(Weakly(collate), None)

    def _waited(self, seconds: float) -> None:
        self.site.seconds_keeping += seconds

    def _fill(self, loader: Any, cache: DatasetRows, store: Store) -> None:
        """Fill the store only if that is quick: the program may want few batches, or its workers may be faster."""
        workers = loader.num_workers
        if workers and start_method(loader.multiprocessing_context) != "fork":
            return  # in a process not forked from this one, a set of strings, for example, has another order
        if needs_workers(loader, store):
            return
        if workers or not self.site.waits():
            self.fill_soon(loader.dataset, cache, store, here=not workers)

    def fill_soon(self, dataset: Any, cache: DatasetRows, store: Store, here: bool) -> None:
        if store.missing * store.seconds > (EAGER if cache.requested or here else AT_FIRST):
            return
        try:
            store.fill(dataset, here=here)
        except Unfit as unfit:
            self.drop(cache, store, str(unfit))

    def _renew(self, cache: DatasetRows, store: Store, collate: Any) -> None:
        """Switch to a new collate_fn with the same code as the previous one."""
        try:
            store.use(collate)
        except Unfit as unfit:
            self.drop(cache, store, str(unfit))

    def _own(self, cache: DatasetRows, store: Store) -> None:
        if store.shared is not None and store.bytes > host_memory() * SHARE_OF_MEMORY:
            self.drop(cache, store, f"there is not enough memory for its workers' copy of {megabytes(store.bytes)}")
        else:
            store.own_rows()

    def _give_up(self, caches: list[DatasetRows]) -> None:
        """Drop all caches of a dataset: a collate_fn created anew each epoch would need a store each time."""
        why = f"it is read with more than {MOST_COLLATES} collate_fns, or with a new one each time"
        for cache in caches:
            if cache.store is not None:
                self.drop(cache, cache.store, why)

    def _count(self, kind: type, cache: DatasetRows) -> None:
        if not cache.requested:
            self._often.proven(kind)
        elif not cache.again:
            self._often.read_again(kind)
            cache.again = True
        cache.requested = True

    def check(self, dataset: Any, cache: DatasetRows, store: Store, in_workers: bool) -> None:
        """Drop the cache if the dataset has changed. Persistent workers see only changes to shared memory."""
        try:
            why = store.changed_elsewhere() if in_workers else store.changed(dataset)
        except Unfit as unfit:
            why = str(unfit)
        if why is not None:
            self.doubt(store, why)
            self.drop(cache, store, why)

    def _watch_closely(self, loader: Any, cache: DatasetRows, store: Store) -> None:
        try:
            find = partial(levels_of, self.torch, loader.dataset) if store.shared is None else None
            store.watch.closely(store.batch_seconds(loader.batch_size or 1), find)
        except Unfit as unfit:
            self.drop(cache, store, str(unfit))

    def drop(self, cache: DatasetRows, store: Store, why: str) -> None:
        cache.store = None
        if cache.reported:
            self.report(cache, f"{cache.reported}; disabled later: {why}")
        else:
            self.site.refused(f"{store.name}: {why}")

    def doubt(self, store: Store, why: str) -> None:
        """Tell the user at once that batches handed out since the last full comparison may have been wrong."""
        if store.unsure:
            before = "the last batch" if store.unsure == 1 else f"the last {store.unsure} batches"
            say(f"resident-data is disabled: {store.name}: {why}; {before} may have been wrong")
            self.site.doubted, store.unsure = True, 0

    def report(self, cache: DatasetRows, text: str) -> None:
        cache.reported = text
        self._reports[id(cache)] = text
        self.site.idle = not any(rows.store is not None for caches in self._stores.values() for rows in caches)
        self.site.applied("; ".join(dict.fromkeys(list(self._reports.values())[-MOST_REPORTED:])))

    def settle(self, cache: DatasetRows, store: Store, learning: DeviceLeaves) -> None:
        """Copy the leaves known to go to a device there, if they fit; called once all items are cached."""
        wanted, learning.waiting = learning.waiting, {}
        device = next(iter(wanted.values()))
        free = self.device_memory(device)
        share = SHARE_WHEN_REQUESTED if self.site.value == "device" else SHARE_OF_MEMORY
        needed = store.bytes_for(wanted)
        if needed > free * share:
            self.report(
                cache,
                f"{cache.reported}; not on the device: needs {megabytes(needed)}, {megabytes(free)} free on {device}",
            )
            return
        store.copy_to(wanted)
        learning.devices = wanted
        parts = f"{len(learning.devices)} of {len(store.rows)} tensors per batch"
        self.report(cache, f"{store.name}: {store.total} items, {parts} taken from {megabytes(needed)} on {device}")

    def device_memory(self, device: Any) -> float:
        return float(self.torch.cuda.mem_get_info(device)[0])


def needs_workers(loader: Any, store: Store) -> bool:
    """Return whether persistent workers must exist although all items are cached: they copied the dataset when they
    started, so if what they share with this process changes, nobody else can make their batches.
    """
    return bool(loader.persistent_workers) and store.watch.is_shared and loader._iterator is None


def is_complete(store: Store) -> bool:
    """Return whether every item is cached, or all but a few that are quick to fetch here."""
    if not store.missing:
        return True
    is_little = store.missing * store.seconds <= EAGER and store.missing <= LITTLE
    return is_little and store.watch.changed_at_epoch() is None


class Weakly:
    """Refers to a function or object without keeping it alive; None once it is gone or if it has no weak references."""

    def __init__(self, target: Any) -> None:
        try:
            self._get: Any = weakref.WeakMethod(target) if isinstance(target, MethodType) else weakref.ref(target)
        except TypeError:
            self._get = None

    def __call__(self) -> Any:
        return None if self._get is None else self._get()


def same_function(first: Any, second: Any) -> bool:
    """Return whether two functions or objects are the same, or were made by the same code with the same values."""
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, partial):
        return same_function(first.func, second.func) and _alike(
            (first.args, sorted(first.keywords.items())), (second.args, sorted(second.keywords.items()))
        )
    if isinstance(first, MethodType):
        return first.__func__ is second.__func__ and first.__self__ is second.__self__
    if isinstance(first, FunctionType):
        return first.__code__ is second.__code__ and _alike(_inside(first), _inside(second))
    kind: Any = type(first)
    if kind.__eq__ is not object.__eq__ or hasattr(kind, "__slots__") or not hasattr(first, "__dict__"):
        return False
    return _alike(sorted(vars(first).items()), sorted(vars(second).items()))


def _inside(function: FunctionType) -> tuple[Any, ...]:
    cells = tuple(_content(cell) for cell in function.__closure__ or ())
    by_name = sorted((function.__kwdefaults__ or {}).items())
    return id(function.__globals__), cells, function.__defaults__, by_name, sorted(vars(function).items())


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _alike(first: Any, second: Any) -> bool:
    """Return whether these are the same object, or equal numbers or strings of one type; 0.0 is not -0.0."""
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if type(first) in (tuple, list):
        return len(first) == len(second) and all(map(_alike, first, second))
    if type(first) in (int, float, bool, complex, str, bytes):
        return same_atom(first, second)
    return isinstance(first, FunctionType | partial | MethodType) and same_function(first, second)
