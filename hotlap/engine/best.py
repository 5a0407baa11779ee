"""The best epoch so far, and whether training stops for want of a better one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hotlap.engine.errors import BadRecipe
from hotlap.engine.metrics import is_higher_better
from hotlap.engine.parts import Parts
from hotlap.engine.recipe import Recipe
from hotlap.engine.run_state import Position


def watch(place: Position, monitor: str, say: Callable[[str], None]) -> None:
    """Forget the best epoch if a resumed run monitors another score: the two cannot be compared."""
    if place.monitor not in (None, monitor):
        say(f"the best epoch is now the one with the {monitor}; before, it was the one with the {place.monitor}")
        place.best, place.best_epoch, place.idle, place.ranking = None, None, 0, []
    place.monitor = monitor


def direction(parts: Parts, name: str) -> bool | None:
    """Return whether a higher value of this score is better; None if nobody has said."""
    return is_higher_better(parts.recipe.higher_is_better, name, parts.evaluation.metrics.get(name))


def require_direction(parts: Parts) -> None:
    """Raise if the monitored score is unknown, or if a best epoch is wanted and nobody has said which way is better."""
    recipe, own = parts.recipe, parts.own_evaluation
    names = [] if parts.valid is None else list(parts.evaluation.metrics)
    own_names = [] if own is None else getattr(own, "names", None)
    monitor = recipe.monitor or next(iter([*names, *(own_names or ())]), None)
    if recipe.monitor is not None and own_names is not None and monitor not in (*names, *own_names, "loss"):
        raise BadRecipe(f"monitor={monitor!r} is not a score; use one of {', '.join((*names, *own_names, 'loss'))}")
    if monitor is None and own is None:
        monitor = "loss"
    if not _wants_best(recipe) or direction(parts, monitor or "") is not None:
        return
    score = repr(monitor) if monitor else "the first score of evaluate="
    raise BadRecipe(
        f"nothing says whether a higher or a lower value of {score} is better, which decides the best epoch; "
        "use Recipe(higher_is_better=True) or False, or Checkpoints(…, best=False) without patience"
    )


def _wants_best(recipe: Recipe) -> bool:
    return recipe.patience is not None or (recipe.checkpoints is not None and bool(recipe.checkpoints.best))


def judge(place: Position, epoch: int, value: float, higher: bool, least: float) -> bool:
    """Return whether this epoch is the best so far, better than the one before it by more than `least`."""
    gain = 0.0 if place.best is None else (value - place.best) * (1 if higher else -1)
    better = not math.isnan(value) and (place.best is None or gain > least)
    if better:
        place.best, place.best_epoch, place.idle = value, epoch, 0
    else:
        place.idle += 1
    return better


def rank(place: Position, epoch: int, value: float, higher: bool, count: int) -> list[int]:
    """Add the epoch to the `count` best ones, unless its score is worse; return the epochs that no longer are."""
    if math.isnan(value):
        return []
    entries = sorted([*place.ranking, (value, epoch)], key=lambda entry: (-entry[0] if higher else entry[0], entry[1]))
    place.ranking = entries[:count]
    return [dropped for _, dropped in entries[count:] if dropped != epoch]


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
