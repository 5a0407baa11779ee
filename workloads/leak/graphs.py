"""A training step as one CUDA graph, captured without leaving a trace in what is trained."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

WARM_UP_STEPS = 3


def eager(step: Callable[[], None], optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        step()

    return run


def captured(
    step: Callable[[], None], model: nn.Module, optimizer: torch.optim.Optimizer, rewind: list[Tensor]
) -> Callable[[], None]:
    """Replays `step` with one launch.

    The warm-up (compilation, autotuning, memory) takes real steps; weights, buffers and optimizer state are
    put back in place afterwards, since the graph holds their addresses, and `rewind` is set to zero.
    """
    before = [tensor.detach().clone() for tensor in model_tensors(model)]
    moments = {key: value.clone() for key, value in optimizer_tensors(optimizer).items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_STEPS):
            optimizer.zero_grad(set_to_none=True)
            set_to_zero(rewind)
            step()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)  # the gradients must be allocated inside the graph
    set_to_zero(rewind)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    restore(model, optimizer, before, moments)
    set_to_zero(rewind)
    keep_alive = [parameter.grad for parameter in model.parameters()]

    def run(_addresses: list[Tensor | None] = keep_alive) -> None:
        graph.replay()

    return run


def set_to_zero(tensors: list[Tensor]) -> None:
    for tensor in tensors:
        tensor.zero_()


def model_tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], Tensor]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        (index, name): value
        for index, parameter in enumerate(parameters)
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


@torch.no_grad()
def restore(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    before: list[Tensor],
    moments: dict[tuple[int, str], Tensor],
) -> None:
    """Copy in place. Moments that only the warm-up made go back to zero, as a fresh optimizer has them."""
    for tensor, saved in zip(model_tensors(model), before, strict=True):
        tensor.copy_(saved)
    for key, value in optimizer_tensors(optimizer).items():
        if key in moments:
            value.copy_(moments[key])
        else:
            value.zero_()
