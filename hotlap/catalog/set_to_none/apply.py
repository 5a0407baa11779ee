"""Looks at the first calls of zero_grad and says so when they keep the gradients. Changes nothing.

A gradient of zeros is not the same as none: with momentum or weight decay a parameter of zero gradient moves.
"""

from __future__ import annotations

from typing import Any

from hotlap.runtime.site import Original, Site

LOOK = 3  # optimizer steps

ADVICE = (
    "zero_grad(set_to_none=False) writes zeros over every gradient at each step and backward adds to them; leave the "
    "argument out, unless parameters without a gradient must move on"
)


def apply(site: Site) -> None:
    steps = 0

    def look(original: Original, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("set_to_none", args[0] if args else True) is False:
            site.refused(ADVICE)
        return original(*args, **kwargs)

    def stepped(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps > LOOK:
            if site.outcome.status != "refused":
                site.no_effect("gradients are dropped, or never zeroed")
            site.close()

    site.replace(site.torch.optim.Optimizer, "zero_grad", look)
    site.replace(site.torch.nn.Module, "zero_grad", look)
    site.after(site.seams.stepping, stepped)
