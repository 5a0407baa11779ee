"""Generators of random numbers: how the state of one is read and put back."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

OWN = "its own"  # so begin the names of streams that no worker is seeded with
Access = tuple[str, Callable[[], Any], Callable[[Any], Any]]


def access(torch: Any, one: Any) -> Access | None:
    """Of a generator; None of anything else."""
    numpy = sys.modules.get("numpy")
    if isinstance(one, torch.Generator):
        return f"{OWN} torch.Generator", one.get_state, one.set_state
    if isinstance(one, random.Random) and not isinstance(one, random.SystemRandom):
        return f"{OWN} random.Random", one.getstate, one.setstate
    if numpy is not None and isinstance(one, numpy.random.RandomState):
        return f"{OWN} numpy RandomState", one.get_state, one.set_state
    if numpy is not None and isinstance(one, numpy.random.Generator):
        bits = one.bit_generator
        return f"{OWN} numpy Generator", functools.partial(_state_of, bits), functools.partial(_set_state, bits)
    return None


def _state_of(bits: Any) -> Any:
    return bits.state


def _set_state(bits: Any, state: Any) -> None:
    bits.state = state
