"""hotlap makes PyTorch training faster and proves it."""

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


def __dir__() -> list[str]:
    return __all__


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

    `risk` is the most that an optimisation may change: "exact" (the default), "rounding" or "numeric". `plan` is "safe"
    or "fast", which stand for the first two risks; or a plan file, of which only what the risk allows is applied; or
    None, to apply nothing but `with_`. `with_` and `without` name entries as for `hotlap run`. Which of them make the
    training faster is measured while it trains; `at_once` applies all of them from the first step. They stay on until
    hotlap.disable() is called, or until the block ends: `with hotlap.enable(): …`.
    """
    from hotlap.control import enable as here
    from hotlap.plan.enable_arguments import is_automatic, named

    decides = is_automatic(plan) and not at_once
    return here.start(named(plan, risk, with_, without), quiet, decides)


def disable() -> None:
    """Undo what hotlap.enable applied."""
    from hotlap.control import enable as here

    here.disable()
