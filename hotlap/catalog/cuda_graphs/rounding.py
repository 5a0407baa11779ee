"""Compares the results of a replay with those of the model itself, which may differ by rounding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

NEAR = 1e-3  # of the largest element; some kernels sum in a different order each time, a wrong replay is far off


def largest(gradients: Iterable[Any]) -> float:
    """Return the magnitude of the largest finite element of all gradients. Host sync."""
    found = [
        gradient.detach().nan_to_num(0.0, 0.0, 0.0)
        for gradient in gradients
        if gradient is not None and gradient.numel()
    ]
    return max((float(gradient.abs().max()) for gradient in found), default=0.0)


def difference(result: Any, reference: Any) -> str:
    if result is None or reference is None:
        return "is missing"
    off = float((result.detach().double() - reference.detach().double()).abs().max())
    return f"differs by {off:.2g} where the largest element is {largest([reference]):.2g}"


def near(torch: Any, result: Any, reference: Any, scale: float = 0.0) -> bool:
    """Whether two results agree up to rounding. `scale` is the largest gradient of the model: one that is mere rounding
    beside it (mathematically, the bias of an attention's keys has none) varies with the order of its sums.
    """
    if result is None or reference is None:
        return result is reference
    result, reference = result.detach(), reference.detach()
    if torch.equal(result, reference):
        return True
    if not result.is_floating_point():
        return False
    rounding = torch.finfo(result.dtype).eps * scale
    result, reference = result.double().nan_to_num(), reference.double().nan_to_num()
    return bool((result - reference).abs().max() <= max(rounding, NEAR * float(reference.abs().max())))
