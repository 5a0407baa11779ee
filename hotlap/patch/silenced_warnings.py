"""Silences warnings about our own calls, which are no concern of the user."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast


@contextmanager
def unwarned(torch: Any, message: str) -> Iterator[None]:
    """Suppress torch warnings that match the pattern.

    Torch gives some warnings only once, and must not think that it has given this one.
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
    """Suppress warnings that match the pattern, without marking them as shown to the program.

    The filter goes straight into the list: warnings.catch_warnings would make Python forget which warnings it has
    shown, and show them again.
    """
    filters = cast("list[Any]", warnings.filters)
    ours = ("ignore", re.compile(message), Warning, None, 0)
    filters.insert(0, ours)
    try:
        yield
    finally:
        filters[:] = [entry for entry in filters if entry is not ours]
