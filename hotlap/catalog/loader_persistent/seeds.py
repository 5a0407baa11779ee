"""A worker that stays is seeded at each epoch as one that is started anew.

The seed travels in the message by which torch tells a worker that an epoch begins: it has a place for a seed, which
torch uses for streams alone. Reading the message there is what seeds the worker.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Seed:
    """Of all workers; arrives as None."""

    base: int

    def __reduce__(self) -> Any:
        return seed_this_worker, (self.base,)


def seed_this_worker(base: int) -> None:
    """As torch does where a worker starts."""
    import torch
    from torch.utils.data._utils import HAS_NUMPY, worker

    info = torch.utils.data.get_worker_info()
    if info is None:
        return
    random.seed(base + info.id)
    torch.manual_seed(base + info.id)
    if HAS_NUMPY:
        import numpy

        numpy.random.seed(worker._generate_state(base, info.id))  # type: ignore[no-untyped-call]


def can_be_sent(iterator: Any) -> bool:
    """Whether this torch has the message, and what it seeds with; else workers are started anew."""
    from torch.utils.data._utils import worker

    return (
        hasattr(iterator, "_shared_seed")
        and "seed" in getattr(worker._ResumeIteration, "__dataclass_fields__", ())
        and hasattr(worker, "_generate_state")
    )


def send(iterator: Any, base: int) -> None:
    """With the next epoch of the iterator."""
    iterator._shared_seed = Seed(base)
