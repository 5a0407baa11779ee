"""A gradient scaler of which the program sees nothing: gradients are scaled only while backward runs.

In float16 small gradients vanish, so backward starts from the scale instead of from one. As soon as it has ended every
gradient is divided by the scale again, so that clipping, logging and accumulation see what they would without us. All
scales are powers of two, which makes both exact. A step whose gradients overflowed is skipped and the scale halved.
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
        self._leaves: list[weakref.ref[Any]] = []  # inputs of the root that want a gradient
        self._stepping: Any = None
        self._withheld: list[tuple[Any, Any]] = []

    def covers(self, root: Any) -> None:
        self._roots.add(root)

    def entered(self, given: Any) -> None:
        """Remember inputs that will get a gradient: theirs is divided too."""
        for one in tensors_in(self._torch, given):
            if one.requires_grad and one.is_leaf:
                self._leaves.append(weakref.ref(one))

    def close(self) -> None:
        self._give_back(self._stepping)

    # Backward

    def backward(self, original: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """In place of torch.autograd.backward. torch.autograd.grad comes by as well and is left alone."""
        if instance is None and "tensors" not in kwargs:
            return original(*args, **kwargs)
        call = {**dict(zip(NAMES, args, strict=False)), **kwargs}
        losses = _listed(call["tensors"])
        if call.get("create_graph") or call.get("grad_variables") is not None or not self._scalable(losses):
            return original(*args, **kwargs)
        starts = _listed(call.get("grad_tensors")) or [None] * len(losses)
        if any(start is None and loss.numel() != 1 for loss, start in zip(losses, starts, strict=False)):
            return original(*args, **kwargs)  # an error of the program's, for torch to tell
        call["grad_tensors"] = [self._start(loss, start) for loss, start in zip(losses, starts, strict=True)]
        leaves = list(self._covered(_listed(call.get("inputs"))))
        self._multiply(leaves)
        try:
            return original(losses, **{name: value for name, value in call.items() if name != "tensors"})
        finally:
            self._divide(leaves)

    def _scalable(self, losses: list[Any]) -> bool:
        full = (self._torch.float32, self._torch.float64)
        return all(isinstance(one, self._torch.Tensor) and one.dtype in full for one in losses)

    def _start(self, loss: Any, start: Any) -> Any:
        scale = self._scale.to(device=loss.device, dtype=loss.dtype)
        return scale.expand(loss.shape) if start is None else start * scale

    def _covered(self, inputs: list[Any]) -> Iterator[Any]:
        """Every tensor that may get a gradient, once."""
        seen: set[int] = set()
        groups = (group["params"] for optimizer in self._optimizers for group in optimizer.param_groups)
        roots = (root.parameters() for root in self._roots)
        leaves = [one for one in (each() for each in self._leaves) if one is not None]
        self._leaves.clear()
        for some in (*groups, *roots, leaves, inputs):
            for one in some:
                if id(one) not in seen:
                    seen.add(id(one))
                    yield one

    def _multiply(self, leaves: list[Any]) -> None:
        """What earlier backward calls have accumulated; it is divided again with the rest."""
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
        """Without gradients a step changes nothing."""
        if not bool(self._overflow_of(optimizer)):  # host sync, as in torch's own scaler; none with a fused optimizer
            return
        for group in optimizer.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    self._withheld.append((one, one.grad))
                    one.grad = None

    def after_step(self, optimizer: Any) -> None:
        self._give_back(optimizer)
        if optimizer in self._stale:
            overflowed = self._overflow_of(optimizer)
            self._torch._amp_update_scale_(self._scale, self._steady, overflowed, GROWTH, BACKOFF, INTERVAL)
            overflowed.zero_()
            self._stale.discard(optimizer)

    def _give_back(self, optimizer: Any) -> None:
        self._stepping = None
        for one, gradient in self._withheld:
            if one.grad is None:
                one.grad = gradient
        self._withheld.clear()
        if optimizer is not None:
            vars(optimizer).pop("found_inf", None)


def fused(optimizer: Any) -> bool:
    """Whether its kernel looks at `found_inf`."""
    return type(optimizer).__module__.startswith("torch.optim") and all(
        group.get("fused") for group in optimizer.param_groups
    )


def _grouped(leaves: Iterable[Any]) -> dict[Any, list[Any]]:
    """Gradients by device and dtype, as torch's joint operations want them."""
    groups: dict[Any, list[Any]] = {}
    for one in leaves:
        if one.grad is not None:
            groups.setdefault((one.grad.device, one.grad.dtype), []).append(one.grad.detach())
    return groups


def _listed(tensors: Any) -> list[Any]:
    if tensors is None:
        return []
    return list(tensors) if isinstance(tensors, list | tuple) else [tensors]
