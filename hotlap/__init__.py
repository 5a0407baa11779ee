"""hotlap makes PyTorch training fast and proves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotlap.observe.span import span
from hotlap.trial.metric import metric
from hotlap.version import __version__

if TYPE_CHECKING:
    from types import EllipsisType

    from hotlap.control.enable import EnabledOptimizations

__all__ = ["__version__", "disable", "enable", "metric", "span"]


def enable(
    plan: str | EllipsisType | None = ...,
    *,
    risk: str | None = None,
    with_: Sequence[str] = (),
    without: Sequence[str] = (),
    at_once: bool = False,
    quiet: bool = True,
) -> EnabledOptimizations:
    """Apply optimisations in this process, before or after torch is imported.

    `risk` is "exact" (the default), "rounding" or "numeric": all that change no more than that. `plan` is "safe" or
    "fast", other words for the first two, or a plan file, of which no more is applied than the risk allows, or None for
    nothing but `with_`. `with_` and `without` name entries as `hotlap run` does. What makes the training faster is
    found out while it trains; `at_once` applies all of it from the first step on. Ends with hotlap.disable(), or with
    the block: `with hotlap.enable(): …`.
    """
    from hotlap.control import enable as here
    from hotlap.plan.enable_arguments import is_automatic, named

    decides = is_automatic(plan) and not at_once
    return here.start(named(plan, risk, with_, without), quiet, decides)


def disable() -> None:
    """Take back what hotlap.enable applied."""
    from hotlap.control import enable as here

    here.disable()
