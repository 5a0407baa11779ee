"""Moves the weights by a little, so that the loss shows how fast this program makes much of it."""

from __future__ import annotations

from typing import Any

SEED = 7


def nudge(torch: Any, optimizer: Any, size: float, way: int = 0) -> None:
    """Each weight up or down by its own size times this, or by what its type can tell apart. Draws from no one else.

    Another `way`, another choice of ups and downs.
    """
    chance = torch._C.Generator("cpu")
    chance.manual_seed(SEED + way)
    with torch.no_grad():
        for weight in (one for group in optimizer.param_groups for one in group["params"]):
            if not weight.is_floating_point():
                continue
            signs = torch.randint(0, 2, weight.shape, generator=chance, dtype=torch.float32, device="cpu") * 2 - 1
            relative = max(size, torch.finfo(weight.dtype).eps)
            weight.mul_((1 + relative * signs.double()).to(device=weight.device, dtype=torch.float64))
