"""Calls of ours that torch or Python warns of, which the user has nothing to do with."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast


@contextmanager
def unwarned(torch: Any, message: str) -> Iterator[None]:
    """Without a warning of torch's that this pattern matches. Torch, which says some things once only, must not think
    that it has said this.
    """
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with python_unwarned(message):
            yield
    finally:
        torch.set_warn_always(always)


@contextmanager
def python_unwarned(message: str = "") -> Iterator[None]:
    """Without a warning that this pattern matches. The program would see it as before: nothing is noted of this one.

    Not by warnings.catch_warnings, which makes Python forget what it has warned of and warn of it again: the filter
    goes straight into the list.
    """
    filters = cast("list[Any]", warnings.filters)
    ours = ("ignore", re.compile(message), Warning, None, 0)
    filters.insert(0, ours)
    try:
        yield
    finally:
        filters[:] = [one for one in filters if one is not ours]
