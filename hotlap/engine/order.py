"""The order of an epoch's rows: a function of seed and epoch alone, so that a resumed run needs nothing else.

A GPU draws other permutations than a CPU from the same seed, so a run keeps its order only on the same kind of device.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPOCHS_A_SEED = 1_000_003  # a prime beyond any number of epochs: no two pairs (seed, epoch) share a number
STREAMS = 2**64  # numbers torch takes; it takes a negative one modulo this too


def order_of(
    source: object, seed: int, epoch: int, device: torch.device, shuffle: bool, rows: int | None = None
) -> Tensor:
    """Return the order of an epoch. With `rows` it has that many: of passes over the source, one after the other."""
    if rows is None:
        return _order_of_pass(source, seed, epoch, device, shuffle)
    first, last, whole = epoch * rows, (epoch + 1) * rows, source.rows  # type: ignore[attr-defined]
    pieces = [
        _order_of_pass(source, seed, number, device, shuffle)[max(first - number * whole, 0) : last - number * whole]
        for number in range(first // whole, -(-last // whole))
    ]
    return torch.cat(pieces)


def _order_of_pass(source: object, seed: int, number: int, device: torch.device, shuffle: bool) -> Tensor:
    """Return the order of a pass: the source's own, where it has one, else by seed and the number of the pass."""
    own = getattr(source, "order", None)
    if own is None:
        return epoch_order(source.rows, seed, number, device, shuffle)  # type: ignore[attr-defined]
    order: Tensor = own(seed, number)
    return order.to(device)


def seed_of(seed: int, epoch: int) -> int:
    return (seed * EPOCHS_A_SEED + epoch) % STREAMS


def epoch_order(rows: int, seed: int, epoch: int, device: torch.device, shuffle: bool = True) -> Tensor:
    if not shuffle:
        return torch.arange(rows, device=device)
    generator = torch.Generator(device).manual_seed(seed_of(seed, epoch))
    return torch.randperm(rows, generator=generator, device=device)
