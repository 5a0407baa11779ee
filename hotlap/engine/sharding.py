"""Weights that several processes share out (FSDP2): each holds a part of every weight, of its gradient and its moments.
A block's weights are put together only while it computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hotlap.engine.processes import Processes

LEAST = 2**20  # elements of a block that is sent on its own: smaller ones travel with what contains them


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")


def held(tensor: Tensor) -> Tensor:
    """Return the elements that this process holds, in the same memory."""
    own: Tensor = tensor.detach().to_local() if is_sharded(tensor) else tensor.detach()  # type: ignore[attr-defined]
    return own


def like(value: Any, parameter: Tensor) -> Any:
    """Return a tensor of a parameter's shape shared out like the parameter, and anything else as it is."""
    if not isinstance(value, Tensor) or is_sharded(value) or not is_sharded(parameter):
        return value
    if value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(parameter.device), mesh, placements)


def shard(model: nn.Module, optimizers: Sequence[Optimizer], processes: Processes) -> None:
    """Share out the weights, unless the program has done so, and give the optimizers what takes their place."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if isinstance(model, FSDPModule):
        return
    before = dict(model.named_parameters(remove_duplicate=False))
    mesh = init_device_mesh(processes.device.type, (processes.count,))
    whole = {parameter for parameter in before.values() if not parameter.is_floating_point()}  # torch cannot shard them
    options: dict[str, Any] = {"mesh": mesh, **({"ignored_params": whole} if whole else {})}
    for block in blocks(model):
        fully_shard(block, **options)
    fully_shard(model, **options)
    now = dict(model.named_parameters(remove_duplicate=False))
    replaced = {id(parameter): now[name] for name, parameter in before.items()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [replaced.get(id(parameter), parameter) for parameter in group["params"]]
        for parameter in list(optimizer.state):
            new, state = replaced.get(id(parameter), parameter), optimizer.state.pop(parameter)
            optimizer.state[new] = {name: like(value, new) for name, value in state.items()}


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that are sent on their own: large ones in lists, or in sequences where there is no list, which
    share no weight with others.
    """
    uses: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    modules = list(model.modules())
    rows: list[Any] = [module for module in modules if isinstance(module, nn.ModuleList)]
    rows = rows or [module for module in modules if isinstance(module, nn.Sequential)]
    inside: set[int] = set()
    for row in rows:
        for block in row:
            parameters = list(block.parameters())
            is_apart = all(uses[id(parameter)] == 1 for parameter in parameters) and id(block) not in inside
            if is_apart and block is not model and sum(parameter.numel() for parameter in parameters) >= LEAST:
                inside.update(map(id, block.modules()))
                yield block


def gather_again(model: nn.Module) -> None:
    """Drop the whole weights that a forward pass without a backward pass leaves behind: their parts may change."""
    for module in model.modules():
        if hasattr(module, "reshard") and hasattr(module, "unshard"):
            module.reshard()  # type: ignore[operator]
