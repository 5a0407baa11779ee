"""Optimizers in their one-kernel form, with learning rates that a captured graph reads from memory."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from hotlap.engine.errors import BadRecipe
from hotlap.engine.processes import Processes
from hotlap.engine.several import each
from hotlap.engine.sharding import held, is_sharded

FUSED = (Adam, AdamW, SGD)


def require_plain_step(given: Optimizer) -> None:
    for optimizer in each(given):
        _require_plain_step(optimizer)


def _require_plain_step(optimizer: Optimizer) -> None:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise BadRecipe(
            f"{type(optimizer).__name__}.step needs a closure to compute the loss several times, but the engine "
            "computes it once per step; use torch.optim.AdamW, Adam or SGD"
        )


def require_dense(model: nn.Module, optimizer: Optimizer, clip: float | None) -> None:
    """Refuse to clip sparse gradients where they can be known before the first step."""
    if clip is None:
        return
    trained = {
        id(parameter) for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad
    }
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and id(module.weight) in trained:
            raise _sparse(clip, f" of {name or 'the model'}")


def _sparse(clip: float, whose: str = "") -> BadRecipe:
    return BadRecipe(
        f"clip={clip}, but the gradients{whose} are sparse, and torch cannot compute their norm; "
        "create the embedding with sparse=False, or leave clip out"
    )


def make_fast(optimizer: Optimizer, device: torch.device, capturable: bool, fuse: bool = True) -> None:
    """Fuse the optimizer where torch can, and make it capturable on request. The numbers of its step do not change.

    Existing state is moved to the device, as torch's own `to` moves the parameters.
    """
    for own in each(optimizer):
        _make_fast(own, device, capturable, fuse)


def _make_fast(optimizer: Optimizer, device: torch.device, capturable: bool, fuse: bool) -> None:
    for group in optimizer.param_groups:
        if fuse and can_be_fused(optimizer, group):
            group.update(fused=True, foreach=False)
            optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined] # as fused=True would
        elif any(map(is_sharded, group["params"])) and "fused" in group:  # a checkpoint of whole weights may say so
            group.update(fused=False, foreach=False)
        if "capturable" in group:
            group["capturable"] = capturable and device.type == "cuda"
        if capturable:
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
    # Steps outside of a graph are rare here (the first, the tail); torch would warn of them once.
    optimizer._warned_capturable_if_run_uncaptured = True
    _move_state(optimizer, device)


def can_be_fused(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    sharded = {is_sharded(parameter) for parameter in group["params"]}
    if sharded == {True, False} or (True in sharded and type(optimizer) is SGD):  # no kernel for them
        return False
    plain = type(optimizer) in FUSED and not group.get("differentiable") and not _dampens(group)
    return plain and all(
        parameter.is_floating_point() and parameter.layout is torch.strided for parameter in group["params"]
    )


def _dampens(group: dict[str, Any]) -> bool:
    """Return whether momentum is dampened: no fused kernel does that for tensors that begin at different steps, since
    a tensor's first momentum is not dampened."""
    return bool(group.get("momentum") and group.get("dampening"))


def begin_momenta(optimizer: Optimizer) -> None:
    """Start momenta at zero, which the first step turns into the gradient: fused SGD fails if only some are missing, as
    when a phase unfreezes something or a head gets its first gradient late.
    """
    for group in (group for own in each(optimizer) if type(own) is SGD for group in own.param_groups):
        if group["momentum"] and group["fused"]:
            for parameter in group["params"]:
                if parameter.requires_grad and optimizer.state[parameter].get("momentum_buffer") is None:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def can_clip(optimizer: Optimizer, device: torch.device) -> bool:
    """Return whether the optimizer's kernel can divide the gradients by a number on its way."""
    fused = all(group.get("fused") and can_be_fused(optimizer, group) for group in optimizer.param_groups)
    return device.type == "cuda" and fused


def why_not_captured(optimizer: Optimizer) -> str:
    """Return what the step needs from the host; empty if it needs nothing, not even the learning rate."""
    found = [_why_not_captured(own) for own in each(optimizer)]
    return "; ".join(filter(None, found))


def _why_not_captured(optimizer: Optimizer) -> str:
    needy = [
        group for group in optimizer.param_groups if "capturable" not in group and not can_be_fused(optimizer, group)
    ]
    with_what = " with dampening" if any(map(_dampens, needy)) else ""
    return f"{type(optimizer).__name__}{with_what} reads its learning rate on the host" if needy else ""


def _move_state(optimizer: Optimizer, device: torch.device) -> None:
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor):
                state[name] = value.to(device)


def clip_together(parameters: list[Tensor], most: float) -> None:
    try:
        nn.utils.clip_grad_norm_(parameters, most, foreach=True)
    except NotImplementedError as error:
        raise _sparse(most) from error


def clip_each(parameters: list[Tensor], most: float) -> None:
    """Limit each element of the gradients, of those that this process holds."""
    gradients = [held(parameter.grad) for parameter in parameters if parameter.grad is not None]
    if gradients:
        torch._foreach_clamp_min_(gradients, -most)
        torch._foreach_clamp_max_(gradients, most)


def clip_shards(parameters: list[Tensor], most: float, processes: Processes) -> None:
    """Limit the norm of all gradients together, of which this process holds parts; those it holds whole count once."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    own = [held(gradient) for gradient in gradients]
    norms = torch._foreach_norm(own)
    total = torch.zeros(2, device=processes.device)
    for gradient, norm in zip(gradients, norms, strict=True):
        total[int(not is_sharded(gradient))] += norm.float().square()
    parts = total[:1].clone()
    processes.add_up([parts])
    norm = (parts + total[1:]).sqrt().reshape(())
    torch._foreach_mul_(own, (most / (norm + Clipping.TINY)).clamp(max=1.0))


class Clipping:
    """Clips gradients in the optimizer's own kernel, which can divide them by a number: three small kernels less.

    The result is that of `clip_grad_norm_` up to rounding: torch multiplies by the reciprocal.
    """

    TINY = 1e-6  # torch's own guard against a norm of zero
    FLAT = 1 << 20  # elements: up to here the norm of all gradients in one piece is faster than one by one

    def __init__(self, most: float, device: torch.device) -> None:
        self.share = 1.0 / most
        self.guard = torch.full((), self.TINY * self.share, device=device)

    def step(self, optimizer: Any, parameters: list[Tensor]) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients:
            optimizer.grad_scale = self.excess(gradients)
        try:
            optimizer.step()
        finally:
            optimizer.grad_scale = None

    def excess(self, gradients: list[Tensor]) -> Tensor:
        """Return by how much the norm of all gradients exceeds the limit, as a factor of at least 1."""
        if sum(gradient.numel() for gradient in gradients) <= self.FLAT:
            norm = torch.linalg.vector_norm(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        else:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        return torch.add(self.guard, norm, alpha=self.share).clamp_(min=1.0)


class LearningRates:
    """Sets the learning rates of every step: on the host as numbers, or inside the step from a table on the device."""

    def __init__(self, optimizer: Optimizer, steps: int, vary: bool, device: torch.device) -> None:
        self.groups = optimizer.param_groups
        self.on_device = all(isinstance(group["lr"], Tensor) for group in self.groups)
        self.vary = vary
        self.table: NDArray[Any] | None = None
        self.next_step = 0
        # Written in place at each epoch: a graph reads it.
        self.rows = torch.zeros(len(self.groups), steps, device=device) if self.on_device and vary else None

    def begin(self, table: NDArray[Any], first: int) -> None:
        """Set the rates of an epoch whose next step is `first`."""
        self.table, self.next_step = table, first
        if self.rows is not None:
            # Not waited for: the host memory is torch's own, staged before the call returns.
            self.rows.copy_(torch.as_tensor(table, dtype=torch.float32), non_blocking=True)
        if first < table.shape[1]:
            self._set(first)

    def apply(self, step: Tensor) -> None:
        """Set the rates as part of the step. `step` is the device's count of steps in this epoch."""
        if self.rows is not None:
            for row, group in zip(self.rows, self.groups, strict=True):
                torch.index_select(row, 0, step, out=group["lr"].view(1))
        elif self.vary:
            self._set(self.next_step)
            self.next_step += 1

    def _set(self, step: int) -> None:
        assert self.table is not None
        for group, rate in zip(self.groups, self.table[:, step].tolist(), strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
