"""hotlap makes PyTorch training fast and proves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotlap.observe.span import span
from hotlap.trial.metric import metric

if TYPE_CHECKING:
    from hotlap.catalog.enabling import Enabled

__all__ = ["__version__", "disable", "enable", "metric", "span"]
__version__ = "0.1.0"


def enable(
    plan: str | None = "safe", *, with_: Sequence[str] = (), without: Sequence[str] = (), quiet: bool = True
) -> Enabled:
    """Apply optimisations in this process, before or after torch is imported.

    `plan` is "safe", "fast", a plan file, or None for nothing but `with_`; `with_` and `without` name entries as
    `hotlap run` does. Ends with hotlap.disable(), or with the block: `with hotlap.enable(): …`.
    """
    from hotlap.catalog import enabling
    from hotlap.plan.choose import choose

    return enabling.start(choose(plan, with_, without).choices, quiet)


def disable() -> None:
    """Take back what hotlap.enable applied."""
    from hotlap.catalog import enabling

    enabling.disable()
