"""Proof, by visiting some items several times, that a dataset gives the same item whenever it is asked."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import MethodType
from typing import Any

from hotlap.catalog.attributes import Attributes
from hotlap.catalog.forked import NoAnswer, has_written, in_a_fork, keep_from_writing, was_heard
from hotlap.catalog.identity import AlsoOfLists
from hotlap.catalog.resident_data.contents import But, Contents, most_seconds
from hotlap.catalog.resident_data.names import Names
from hotlap.catalog.resident_data.sameness import Unfit, same
from hotlap.catalog.resident_data.streams import OWN, RANDOM, Streams
from hotlap.catalog.signals import raised_by_signal
from hotlap.catalog.silence import silenced

MOST_ITEMS = 8
FEWEST_ITEMS = 3
LONG_ENOUGH = 2.0  # seconds for a first visit; items that take longer are visited in smaller number
SEEDS = (7919, 104_729)
DEEPEST = 4  # datasets in datasets
MOST_HELD = 1000  # of a container looked through for datasets
PATIENCE = 5.0  # seconds, in a process of its own
LOOKING_FIRST, LOOKING_FIRST_EACH = 0.5, 20e-6  # seconds to look at a dataset before an item was fetched

_forks = sys.platform == "linux"
_refused: AlsoOfLists[str] = AlsoOfLists()  # why, for all who ask


@dataclass(frozen=True)
class Proof:
    """The items that were visited, as they were at the last visit."""

    indices: list[int]
    samples: list[Any]
    seconds: float  # to fetch one
    opened: But  # what the first visit set


def fetch(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """As torch's own fetcher does."""
    if hasattr(dataset, "__getitems__") and dataset.__getitems__:
        return list(dataset.__getitems__(list(indices)))
    return [dataset[index] for index in indices]


def length_of(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise Unfit("its dataset has no length") from error


@contextmanager
def unchanged(
    torch: Any, dataset: Any, *others: Any, streams: Streams | None = None, attributes: bool = True
) -> Iterator[Streams]:
    """Random streams and attributes of these, and of datasets in them, are put back: a file opened for us is closed.

    `streams` where they are known: looking for them takes some milliseconds.
    """
    streams = Streams(torch, dataset, *others) if streams is None else streams.here()
    before = [Attributes(one) for one in holders(torch, dataset, *others)] if attributes else []
    try:
        with torch.inference_mode(False):
            yield streams
    finally:
        streams.restore()
        for one in before:
            one.restore()


def holders(torch: Any, *things: Any) -> list[Any]:
    """These things and the datasets they hold: a lazily opened file, a counter or a cache may be at any of them."""
    found: dict[int, Any] = {}
    for _ in range(DEEPEST + 1):
        fresh = {id(one): one for one in _unwrapped(things) if id(one) not in found and hasattr(one, "__dict__")}
        found.update(fresh)
        held = [value for one in fresh.values() for value in vars(one).values()]
        things = tuple(one for one in _laid_open(held) if isinstance(one, torch.utils.data.Dataset))
    return list(found.values())


def _unwrapped(things: Iterable[Any]) -> Iterator[Any]:
    for one in things:
        yield one
        if isinstance(one, MethodType):
            yield one.__self__
        elif isinstance(one, partial):
            yield from _unwrapped((one.func, *one.args, *one.keywords.values()))


def _laid_open(values: Iterable[Any]) -> Iterator[Any]:
    for one in values:
        yield one
        if type(one) in (list, tuple, dict):
            yield from islice(one.values() if type(one) is dict else one, MOST_HELD)


def prove(torch: Any, dataset: Any) -> Proof:
    """Raises Unfit with the reason when items are random, change, or cannot be fetched in this process.

    Tried in a copy of this process first, where there can be one: not everything that counts visits can be put back.
    """
    if type(dataset) in (list, tuple, torch.utils.data.TensorDataset):
        return _proven(torch, dataset)  # fetching from these leaves nothing behind
    if (why := _refused.get(dataset)) is None:
        why = _why_not(torch, dataset)
    if why is not None:
        _refused.put(dataset, why)
        raise Unfit(why)
    return _proven(torch, dataset)


def refuse(dataset: Any, why: str) -> None:
    """What came out later, for all who ask."""
    _refused.put(dataset, why)


def why_other(dataset: Any) -> str | None:
    """Where its items were found to differ also in workers that are seeded alike."""
    why = _refused.get(dataset)
    return why if why is not None and why.startswith(RANDOM) and OWN in why.removeprefix(RANDOM) else None


def may_fork() -> bool:
    """Copies of this process can be made and have answered so far."""
    return _forks


def _why_not(torch: Any, dataset: Any) -> str | None:
    global _forks
    try:  # here, where it takes less time
        Contents(
            torch,
            dataset,
            names=Names(dataset),
            most=max(LOOKING_FIRST, most_seconds(length_of(dataset), LOOKING_FIRST_EACH)),
            shared=False,
        )
    except Unfit as unfit:
        return str(unfit)
    if not _forks:
        return None
    try:
        why = in_a_fork(torch, partial(_why_not_in_child, torch, dataset), PATIENCE)
    except NoAnswer:  # its tensors are on a device, say, or it waits for a thread, of which a copy has none
        _forks = False
        return None
    return None if why is None else str(why)


def _why_not_in_child(torch: Any, dataset: Any) -> str | None:
    """Looking takes longer here: what is touched must be copied first."""
    keep_from_writing()
    try:
        _proven(torch, dataset, patience=4.0)
        if was_heard():
            return "fetching an item prints or logs something"
    except Unfit as unfit:
        return "fetching an item writes a file" if has_written(unfit) else str(unfit)
    return None


def _proven(torch: Any, dataset: Any, patience: float = 1.0) -> Proof:
    total = length_of(dataset)
    if total == 0:
        raise Unfit("its dataset is empty")
    with silenced() as silence, unchanged(torch, dataset) as streams:
        names = Names(dataset)
        unopened = [Attributes(one) for one in holders(torch, dataset)]
        indices, first, seconds = _first_visit(dataset, _some(total))
        _refuse_draws(streams)
        opened = {one.of: changed for one in unopened if (changed := one.changed())}
        most = most_seconds(total, seconds) * patience
        before = Contents(torch, dataset, names=names, most=most, shared=False)
        for seed in SEEDS:
            streams.vary(seed)
            varied = streams.here()
            again = visit(dataset, list(reversed(indices)))
            again.reverse()
            _refuse_draws(varied)
            for index, one, other in zip(indices, first, again, strict=True):
                if not same(torch, one, other):
                    raise Unfit(f"two visits to item {index} give different values")
        if Contents(torch, dataset, names=names, most=4 * most).differ(before):
            raise Unfit("fetching an item changes what its dataset holds")
    if silence.broken:
        raise Unfit("fetching an item prints or logs something")
    return Proof(indices, again, seconds, opened)


def _some(total: int) -> list[int]:
    """The ends, the middle and some between, in an order of their own."""
    chosen = random.Random(total).sample(range(total), min(total, MOST_ITEMS))
    return list(dict.fromkeys([0, total - 1, total // 2, *chosen]))[:MOST_ITEMS]


def _first_visit(dataset: Any, indices: list[int]) -> tuple[list[int], list[Any], float]:
    started, seconds = time.perf_counter(), 0.0
    samples: list[Any] = []
    for index in indices:
        before = time.perf_counter()
        samples += visit(dataset, [index])
        now = time.perf_counter()
        seconds = now - before if not seconds else min(seconds, now - before)  # the first may open files
        if now - started > LONG_ENOUGH and len(samples) >= FEWEST_ITEMS:
            break
    return indices[: len(samples)], samples, seconds


def visit(dataset: Any, indices: list[int]) -> list[Any]:
    try:
        samples = fetch(dataset, indices)
    except (Exception, SystemExit) as error:
        if raised_by_signal(error):
            raise
        raise Unfit(f"an item could not be fetched in this process ({type(error).__name__}: {error})") from error
    if len(samples) != len(indices):
        raise Unfit(f"{len(indices)} items were asked for and {len(samples)} came")
    return samples


def _refuse_draws(streams: Streams) -> None:
    moved = streams.moved()
    if moved is not None:
        raise Unfit(f"{RANDOM}: fetching one draws from {moved}")
