"""The indices of an epoch drawn as torch's own samplers draw them, but kept as a tensor: no list of Python integers.

The same numbers are drawn from the same streams at the same moments. A torch whose samplers draw otherwise is noticed
by comparing the two once, and its own samplers are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from hotlap.catalog.resident_data.foresight import order_of
from hotlap.catalog.resident_data.rows import Order, Wanted


def drawn(loader: Any) -> Iterator[Wanted] | None:
    """One Wanted per batch, or None where the loader's own sampler must be asked."""
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler or batches.sampler is not loader.sampler or not _is_known(loader.sampler):
        return None
    if _length(batches.sampler) > len(loader.dataset) or not as_torch_draws():
        return None
    return _batches(batches)


def _is_known(sampler: Any) -> bool:
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source) > 0
    return type(sampler) is SequentialSampler and len(sampler.data_source) > 0


def _length(sampler: Any) -> int:
    return len(sampler.data_source)


def _batches(batches: Any) -> Iterator[Wanted]:
    sampler, size, length = batches.sampler, batches.batch_size, _length(batches.sampler)
    generator = sampler.generator if type(sampler) is RandomSampler else None
    order = Order(_order(sampler, length))
    for start in range(0, length - size + 1, size):
        yield Wanted(None, order, start, size)
    if generator is not None:
        # Torch's sampler draws once more when it is asked for an index after the last: the user's generator shows it.
        torch.randperm(length, generator=generator)
    rest = length % size
    if rest and not batches.drop_last:
        yield Wanted(None, order, length - rest, rest)


def _order(sampler: Any, length: int) -> Any:
    if type(sampler) is SequentialSampler:
        return torch.arange(length)
    if sampler.generator is not None:
        return torch.randperm(length, generator=sampler.generator)
    return order_of(sampler, int(torch.empty((), dtype=torch.int64).random_().item()), length)


@lru_cache(maxsize=1)
def as_torch_draws() -> bool:
    """Small epochs, batch by batch, both ways: indices and where the streams are after each."""
    kept = torch.get_rng_state()
    try:
        return all(
            _trail(_batches, own, last, size) == _trail(iter, own, last, size)
            for own in (False, True)
            for last in (False, True)
            for size in (4, 5)
        )
    finally:
        torch.set_rng_state(kept)


def _trail(iterate: Any, own: bool, drop_last: bool, size: int) -> list[Any]:
    torch.default_generator.manual_seed(1)  # not torch.manual_seed, which would seed devices too
    generator = torch.Generator().manual_seed(2) if own else None
    sampler = RandomSampler(range(10), generator=generator)
    trail: list[Any] = []
    asked = iterate(BatchSampler(sampler, size, drop_last))
    while True:
        batch = next(asked, None)
        indices = batch.indices.tolist() if isinstance(batch, Wanted) else batch
        states = [torch.get_rng_state(), *([] if generator is None else [generator.get_state()])]
        trail.append((indices, [bytes(state.numpy()) for state in states]))
        if batch is None:
            return trail
