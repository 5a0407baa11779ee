"""Weights that `torch.nn.utils.weight_norm` computes before each forward, by a hook."""

from __future__ import annotations

import sys
from typing import Any


def weight_norms(module: Any) -> list[Any]:
    """Return the hooks of weight_norm on one module. Each computes the attribute `hook.name` and does nothing else."""
    hooks = module._forward_pre_hooks
    if not hooks:
        return []
    kind = getattr(sys.modules.get("torch.nn.utils.weight_norm"), "WeightNorm", None)
    return [hook for hook in hooks.values() if type(hook) is kind]


def recomputed_names(module: Any) -> frozenset[str]:
    """Return the attributes of one module that such hooks replace at each call."""
    return frozenset(hook.name for hook in weight_norms(module))
