"""Compares the results of a replay with those of the model itself, which may differ by rounding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

UNCERTAIN = 4  # times the differences that were seen: a wrong replay is further off
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
    return f"differs by {_farthest(result, reference):.2g} where the largest element is {largest([reference]):.2g}"


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


def is_as_uncertain(result: Any, reference: Any, again: list[Any]) -> bool:
    """Whether a result is little further from the reference than the same computation done again. Host sync."""
    if result is None or reference is None or not again or any(values is None for values in again):
        return False
    seen = max(_farthest(values, reference) for values in again)
    return _farthest(result, reference) <= UNCERTAIN * seen


def _farthest(result: Any, reference: Any) -> float:
    return float((result.detach().double() - reference.detach().double()).abs().max())
