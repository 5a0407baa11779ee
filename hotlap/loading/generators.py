"""Random number generators: how the state of one is read and restored."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

OWN = "its own"  # prefix for the names of streams that are not seeded in workers
Access = tuple[str, Callable[[], Any], Callable[[Any], Any]]


def access(torch: Any, candidate: Any) -> Access | None:
    """Return the name, getter and setter of a generator's state, or None for anything else."""
    numpy = sys.modules.get("numpy")
    if isinstance(candidate, torch.Generator):
        return f"{OWN} torch.Generator", candidate.get_state, candidate.set_state
    if isinstance(candidate, random.Random) and not isinstance(candidate, random.SystemRandom):
        return f"{OWN} random.Random", candidate.getstate, candidate.setstate
    if numpy is not None and isinstance(candidate, numpy.random.RandomState):
        return f"{OWN} numpy RandomState", candidate.get_state, candidate.set_state
    if numpy is not None and isinstance(candidate, numpy.random.Generator):
        bits = candidate.bit_generator
        return f"{OWN} numpy Generator", functools.partial(_state_of, bits), functools.partial(_set_state, bits)
    return None


def _state_of(bits: Any) -> Any:
    return bits.state


def _set_state(bits: Any, state: Any) -> None:
    bits.state = state
