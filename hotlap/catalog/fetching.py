"""Fetches a few samples several times, in the process that weighs a dataset."""

from __future__ import annotations

import hashlib
import pickle
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from time import perf_counter
from typing import Any

ITEMS, FEWEST = 8, 2
VISITS = 4
SECONDS = 0.25  # a visit; with slow samples it has fewer
DEEP = 8


@dataclass(frozen=True)
class Recipe:
    """How a loader fetches."""

    dataset: Any
    collate: Any
    sampler: Any
    batch_sampler: Any
    batches: bool  # items are put together in batches


def look(recipe: Recipe) -> dict[str, Any]:
    """The fields of a Weight."""
    try:
        return _look(recipe)
    except Exception as error:  # noqa: BLE001 whatever the user's dataset raises
        return {"problem": f"a process of its own could not fetch a sample ({type(error).__name__}: {error})"}


def _look(recipe: Recipe) -> dict[str, Any]:
    fetch = _fetcher(recipe)
    _seed(0)  # a sampler draws the same keys in every process
    first, second = _keys(recipe)
    began = perf_counter()
    fetch(first[:1])
    items = max(FEWEST, min(ITEMS, int(SECONDS / max(perf_counter() - began, 1e-9))))
    first, second = first[:items], second[:items]
    found = None
    contents = _Contents()
    for seed in range(VISITS):
        _seed(seed)
        before = _states()
        batch = fetch(first)
        drawn = [name for name, state in _states().items() if state != before[name]]
        seen = _Contents.of(batch)
        if drawn:
            found = found or f"fetching a sample draws from the random numbers of {', '.join(drawn)}"
        if seed and seen.digest != contents.digest:
            found = found or "a sample fetched twice was not the same"
        contents = contents if seed else seen
    return {
        "item_us": median(_seconds(fetch, key) for key in second) * 1e6,  # others: the first are in some cache by now
        "item_bytes": contents.bytes // len(first),
        "random": found,
        "seeded": found is not None and _seeded_digest(fetch, first) == contents.digest,
        "on_host": contents.on_host,
        "plain": contents.plain,
        "digest": _Contents.of(fetch(first[:FEWEST])).digest,
    }


def _seeded_digest(fetch: Any, keys: list[Any]) -> str:
    """Of the samples as at the first visit, if nothing but the random numbers it began with makes them."""
    _seed(0)
    return _Contents.of(fetch(keys)).digest


def _seconds(fetch: Any, key: Any) -> float:
    began = perf_counter()
    fetch([key])
    return perf_counter() - began


def _fetcher(recipe: Recipe) -> Any:
    """As torch fetches in a worker; without batches it is given one key."""
    from torch.utils.data import _utils
    from torch.utils.data.dataloader import _DatasetKind

    collate = recipe.collate
    if collate is None:
        collate = _utils.collate.default_collate if recipe.batches else _utils.collate.default_convert
    create: Any = _DatasetKind.create_fetcher
    fetcher = create(_DatasetKind.Map, recipe.dataset, recipe.batches, collate, False)
    if recipe.batches:
        return fetcher.fetch
    return lambda keys: [fetcher.fetch(key) for key in keys]


def _keys(recipe: Recipe) -> tuple[list[Any], list[Any]]:
    """Of two sets of samples, as the sampler gives them or from all over the dataset."""
    if recipe.batch_sampler is not None:
        batches = [list(batch) for batch in islice(iter(recipe.batch_sampler), 2)]
        return batches[0], batches[-1]
    if recipe.sampler is not None:
        keys = list(islice(iter(recipe.sampler), 2 * ITEMS))
    else:
        length = len(recipe.dataset)
        keys = list(range(0, length, max(1, length // (2 * ITEMS))))[: 2 * ITEMS]
    if not keys:
        raise LookupError("it is empty")
    return keys[::2], keys[1::2] or keys


def _seed(seed: int) -> None:
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def _states() -> dict[str, Any]:
    import torch

    states = {"torch": torch.get_rng_state().numpy().tobytes(), "Python": random.getstate()}
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"] = (kind, keys.tobytes(), *rest)
    return states


class _Contents:
    """What a batch is made of, bit by bit."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.bytes = 0
        self.on_host = self.plain = True

    @classmethod
    def of(cls, batch: Any) -> _Contents:
        found = cls()
        found.add(batch)
        return found

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def add(self, thing: Any, depth: int = 0) -> None:
        import torch

        self._hash.update(type(thing).__qualname__.encode())
        if depth > DEEP:
            raise RecursionError("its samples are nested too deeply to compare")
        if isinstance(thing, torch.Tensor):
            self._add_tensor(thing)
        elif "numpy" in sys.modules and isinstance(thing, sys.modules["numpy"].ndarray | sys.modules["numpy"].generic):
            self._add_bytes(
                f"{thing.dtype}{thing.shape}", thing.tobytes() if thing.dtype != object else pickle.dumps(thing)
            )
        elif isinstance(thing, str | bytes | int | float | complex | bool | None):
            self._add_bytes("", repr(thing).encode())
        elif isinstance(thing, Mapping):
            for key, value in thing.items():
                self.add(key, depth + 1)
                self.add(value, depth + 1)
        elif isinstance(thing, Sequence):
            for value in thing:
                self.add(value, depth + 1)
        else:
            self._add_object(thing, depth)

    def _add_tensor(self, tensor: Any) -> None:
        import torch

        if tensor.device.type != "cpu":
            self.on_host = False
        elif tensor.layout is not torch.strided or tensor.is_quantized:
            raise TypeError("its tensors are not plain")
        host = tensor.detach().cpu().contiguous().reshape(-1)
        self._add_bytes(f"{tensor.dtype}{tuple(tensor.shape)}", host.view(torch.uint8).numpy().tobytes())

    def _add_bytes(self, kind: str, content: bytes) -> None:
        self._hash.update(kind.encode())
        self._hash.update(content)
        self.bytes += len(content)

    def _add_object(self, thing: Any, depth: int) -> None:
        self.plain = False
        if hasattr(thing, "__dict__"):
            self.add(dict(vars(thing)), depth + 1)
        else:
            self._add_bytes("", pickle.dumps(thing))
