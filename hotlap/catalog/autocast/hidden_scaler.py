"""A gradient scaler that the program never sees: gradients are scaled only while backward runs.

In float16 small gradients vanish, so backward starts from the scale instead of from one. As soon as it ends, every
gradient is divided by the scale, so that clipping, logging and accumulation see the usual values. All scales are powers
of two, so both are exact. A step whose gradients overflowed is skipped and the scale halved.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from hotlap.runtime.rehearsal import tensors_in

FIRST, GROWTH, BACKOFF, INTERVAL = 65536.0, 2.0, 0.5, 2000  # as torch.amp.GradScaler has them
NAMES = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")


class HiddenScaler:
    def __init__(self, torch: Any, device: Any, optimizers: Iterable[Any]) -> None:
        self._torch = torch
        self._optimizers = optimizers
        self._scale = torch.full((), FIRST, dtype=torch.float32, device=device)
        self._steady = torch.zeros((), dtype=torch.int32, device=device)
        self._overflowed: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # optimizer → 0 or 1
        self._stale: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers with new gradients since their step
        self._roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self._leaves: list[weakref.ref[Any]] = []  # inputs of the root that require a gradient
        self._stepping: Any = None
        self._withheld: list[tuple[Any, Any]] = []

    def covers(self, root: Any) -> None:
        self._roots.add(root)

    def entered(self, given: Any) -> None:
        """Remember inputs that will get a gradient, which must be divided too."""
        for tensor in tensors_in(self._torch, given):
            if tensor.requires_grad and tensor.is_leaf:
                self._leaves.append(weakref.ref(tensor))

    def close(self) -> None:
        self._give_back(self._stepping)

    # Backward

    def backward(self, original: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Stand in for torch.autograd.backward. torch.autograd.grad passes through here too and runs unchanged."""
        if instance is None and "tensors" not in kwargs:
            return original(*args, **kwargs)
        call = {**dict(zip(NAMES, args, strict=False)), **kwargs}
        losses = _listed(call["tensors"])
        if call.get("create_graph") or call.get("grad_variables") is not None or not self._scalable(losses):
            return original(*args, **kwargs)
        starts = _listed(call.get("grad_tensors")) or [None] * len(losses)
        if any(start is None and loss.numel() != 1 for loss, start in zip(losses, starts, strict=False)):
            return original(*args, **kwargs)  # the program's error, for torch to report
        call["grad_tensors"] = [self._start(loss, start) for loss, start in zip(losses, starts, strict=True)]
        leaves = list(self._covered(_listed(call.get("inputs"))))
        self._multiply(leaves)
        try:
            return original(losses, **{name: value for name, value in call.items() if name != "tensors"})
        finally:
            self._divide(leaves)

    def _scalable(self, losses: list[Any]) -> bool:
        full = (self._torch.float32, self._torch.float64)
        return all(isinstance(loss, self._torch.Tensor) and loss.dtype in full for loss in losses)

    def _start(self, loss: Any, start: Any) -> Any:
        scale = self._scale.to(device=loss.device, dtype=loss.dtype)
        return scale.expand(loss.shape) if start is None else start * scale

    def _covered(self, inputs: list[Any]) -> Iterator[Any]:
        """Yield every tensor that may get a gradient, once."""
        seen: set[int] = set()
        groups = (group["params"] for optimizer in self._optimizers for group in optimizer.param_groups)
        roots = (root.parameters() for root in self._roots)
        leaves = [leaf for leaf in (reference() for reference in self._leaves) if leaf is not None]
        self._leaves.clear()
        for tensors in (*groups, *roots, leaves, inputs):
            for tensor in tensors:
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield tensor

    def _multiply(self, leaves: list[Any]) -> None:
        """Scale what earlier backward calls have accumulated; it is divided again with the rest."""
        for (device, _), gradients in _grouped(leaves).items():
            self._torch._foreach_mul_(gradients, self._scale.to(device))

    def _divide(self, leaves: list[Any]) -> None:
        torch = self._torch
        found = torch.zeros((), dtype=torch.float32, device=self._scale.device)
        inverse = self._scale.double().reciprocal().float()
        for (device, _), gradients in _grouped(leaves).items():
            here = found.to(device)
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, here, inverse.to(device))
            found = torch.maximum(found, here.to(found.device))
        for optimizer in self._optimizers:
            mine = self._overflow_of(optimizer)
            torch.maximum(mine, found, out=mine)
            self._stale.add(optimizer)
        if self._stepping is not None and not fused(self._stepping):
            self._withhold(self._stepping)  # backward was called by the closure of a step

    def _overflow_of(self, optimizer: Any) -> Any:
        if optimizer not in self._overflowed:
            self._overflowed[optimizer] = self._torch.zeros((), dtype=self._torch.float32, device=self._scale.device)
        return self._overflowed[optimizer]

    # Steps

    def before_step(self, optimizer: Any) -> None:
        self._stepping = optimizer
        if fused(optimizer):
            optimizer.found_inf = self._overflow_of(optimizer)  # its kernel skips by itself: no host sync
        elif optimizer in self._stale:
            self._withhold(optimizer)

    def _withhold(self, optimizer: Any) -> None:
        """Take away gradients that overflowed, so that the step changes nothing."""
        if not bool(self._overflow_of(optimizer)):  # host sync, as in torch's own scaler; none with a fused optimizer
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._withheld.append((parameter, parameter.grad))
                    parameter.grad = None

    def after_step(self, optimizer: Any) -> None:
        self._give_back(optimizer)
        if optimizer in self._stale:
            overflowed = self._overflow_of(optimizer)
            self._torch._amp_update_scale_(self._scale, self._steady, overflowed, GROWTH, BACKOFF, INTERVAL)
            overflowed.zero_()
            self._stale.discard(optimizer)

    def _give_back(self, optimizer: Any) -> None:
        self._stepping = None
        for parameter, gradient in self._withheld:
            if parameter.grad is None:
                parameter.grad = gradient
        self._withheld.clear()
        if optimizer is not None:
            vars(optimizer).pop("found_inf", None)


def fused(optimizer: Any) -> bool:
    """Whether the optimizer's kernel reads `found_inf`."""
    return type(optimizer).__module__.startswith("torch.optim") and all(
        group.get("fused") for group in optimizer.param_groups
    )


def _grouped(leaves: Iterable[Any]) -> dict[Any, list[Any]]:
    """Group gradients by device and dtype, as torch's foreach operations require."""
    groups: dict[Any, list[Any]] = {}
    for leaf in leaves:
        if leaf.grad is not None:
            groups.setdefault((leaf.grad.device, leaf.grad.dtype), []).append(leaf.grad.detach())
    return groups


def _listed(tensors: Any) -> list[Any]:
    if tensors is None:
        return []
    return list(tensors) if isinstance(tensors, list | tuple) else [tensors]
