"""Gradients straight from autograd's engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.autograd.graph import _engine_run_backward


def gradients_of(
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    upstream: Sequence[Any],
    retain_graph: bool = False,
    allow_unused: bool = False,
    create_graph: bool = False,
) -> tuple[Any, ...]:
    """Do what torch.autograd.grad does, unseen by whoever watches the program's backward passes.

    `upstream` must have the shapes of the outputs. To compare them, torch.autograd.grad imports sympy, which takes two
    seconds.
    """
    found = _engine_run_backward(
        tuple(outputs),
        tuple(upstream),
        retain_graph or create_graph,
        create_graph,
        tuple(inputs),
        allow_unused,
        accumulate_grad=False,
    )
    return tuple(found)
