"""Whether a method of torch's classes is torch's own, or the program has put another in its place."""

from __future__ import annotations

from typing import Any

from hotlap.loading.purity.genuine import genuine_of
from hotlap.loading.purity.objects import without_our_layers


def is_of_torch(method: Any) -> bool:
    """Return whether a method is torch's, layer by layer: the program's own would lead back to ours by its hooks."""
    method = without_our_layers(method)
    while genuine_of("torch", method) and hasattr(method, "__wrapped__"):
        method = without_our_layers(method.__wrapped__)
    return genuine_of("torch", method)
