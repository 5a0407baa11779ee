"""Moves the weights by a tiny amount, so that the loss shows how fast this program amplifies a difference."""

from __future__ import annotations

from typing import Any

SEED = 7


def nudge(torch: Any, optimizer: Any, size: float, way: int = 0) -> None:
    """Move each weight up or down by `size` times its value, or by the precision of its type if that is coarser.

    Draws from no random stream of the program. Each `way` chooses different directions.
    """
    chance = torch._C.Generator("cpu")
    chance.manual_seed(SEED + way)
    with torch.no_grad():
        for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
            if not weight.is_floating_point():
                continue
            signs = torch.randint(0, 2, weight.shape, generator=chance, dtype=torch.float32, device="cpu") * 2 - 1
            relative = max(size, torch.finfo(weight.dtype).eps)
            weight.mul_((1 + relative * signs.double()).to(device=weight.device, dtype=torch.float64))
