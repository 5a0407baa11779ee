"""The best epoch so far, and whether training stops for want of a better one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hotlap.engine.run_state import Position


def watch(place: Position, monitor: str, say: Callable[[str], None]) -> None:
    """Forget the best epoch if a resumed run monitors another score: the two cannot be compared."""
    if place.monitor not in (None, monitor):
        say(f"the best epoch is now the one with the {monitor}; before, it was the one with the {place.monitor}")
        place.best, place.best_epoch, place.idle = None, None, 0
    place.monitor = monitor


def judge(place: Position, epoch: int, value: float, higher: bool, least: float) -> bool:
    """Return whether this epoch is the best so far, better than the one before it by more than `least`."""
    gain = 0.0 if place.best is None else (value - place.best) * (1 if higher else -1)
    better = not math.isnan(value) and (place.best is None or gain > least)
    if better:
        place.best, place.best_epoch, place.idle = value, epoch, 0
    else:
        place.idle += 1
    return better


def why_over(place: Position, patience: int | None, callbacks: Sequence[str], epochs: int) -> str | None:
    """Return why a resumed run has nothing to do with its own patience, callbacks and epochs, or None."""
    if place.stopped_by not in callbacks:
        place.stopped_by = None
    place.stopped_early = patience is not None and place.idle >= patience
    if place.stopped_early:
        return f"it stopped early, {place.idle} epochs after the best; raise patience to continue"
    if place.stopped_by is not None and place.window == 0:
        return f"callback {place.stopped_by} stopped it; leave that callback out to continue"
    if place.epoch >= epochs:
        return f"{place.epoch} epochs are already trained, and {epochs} were requested; raise epochs to continue"
    return None
