"""Seeds persistent workers at each epoch like newly started ones.

The seed travels in the message by which torch tells a worker that an epoch begins. It has a field for a seed, which
torch uses only for streams. Unpickling the message seeds the worker.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Seed:
    """The base seed of all workers. Unpickling it in a worker seeds that worker and yields None."""

    base: int

    def __reduce__(self) -> Any:
        return seed_this_worker, (self.base,)


def seed_this_worker(base: int) -> None:
    """Seed this worker as torch does when a worker starts."""
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
    """Return whether this version of torch has that message and its seeding code; if not, workers are restarted."""
    from torch.utils.data._utils import worker

    return (
        hasattr(iterator, "_shared_seed")
        and "seed" in getattr(worker._ResumeIteration, "__dataclass_fields__", ())
        and hasattr(worker, "_generate_state")
    )


def send(iterator: Any, base: int) -> None:
    """Send the seed to the workers with the iterator's next epoch."""
    iterator._shared_seed = Seed(base)
