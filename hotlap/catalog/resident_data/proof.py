"""Proof, by visiting some items several times, that a dataset gives the same item whenever it is asked."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hotlap.catalog.resident_data.sameness import Unfit, same
from hotlap.catalog.resident_data.streams import Streams

MOST_ITEMS = 8
FEWEST_ITEMS = 3
LONG_ENOUGH = 2.0  # seconds for a first visit; items that take longer are visited in smaller number
SEEDS = (7919, 104_729)


@dataclass(frozen=True)
class Proof:
    """The items that were visited, as they were at the last visit."""

    indices: list[int]
    samples: list[Any]
    seconds: float  # to fetch one


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
def unchanged(torch: Any, dataset: Any, *others: Any) -> Iterator[Streams]:
    """Random streams and the dataset's attributes are put back afterwards: a file it opened for us is closed again."""
    streams = Streams(torch, dataset, *others)
    attributes = getattr(dataset, "__dict__", {})
    before = dict(attributes)
    try:
        with torch.inference_mode(False):
            yield streams
    finally:
        streams.restore()
        for name in [name for name in attributes if name not in before]:
            del attributes[name]
        for name, value in before.items():
            if attributes.get(name) is not value:
                attributes[name] = value


def prove(torch: Any, dataset: Any) -> Proof:
    """Raises Unfit with the reason when items are random, change, or cannot be fetched in this process."""
    total = length_of(dataset)
    if total == 0:
        raise Unfit("its dataset is empty")
    with unchanged(torch, dataset) as streams:
        indices, first, seconds = _first_visit(dataset, _some(total))
        _refuse_draws(streams)
        for seed in SEEDS:
            streams.vary(seed)
            varied = streams.here()
            again = visit(dataset, list(reversed(indices)))
            again.reverse()
            _refuse_draws(varied)
            for index, one, other in zip(indices, first, again, strict=True):
                if not same(torch, one, other):
                    raise Unfit(f"two visits to item {index} give different values")
    return Proof(indices, again, seconds)


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
    except Exception as error:
        raise Unfit(f"an item could not be fetched in this process ({type(error).__name__}: {error})") from error
    if len(samples) != len(indices):
        raise Unfit(f"{len(indices)} items were asked for and {len(samples)} came")
    return samples


def _refuse_draws(streams: Streams) -> None:
    moved = streams.moved()
    if moved is not None:
        raise Unfit(f"its items are random: fetching one draws from {moved}")
