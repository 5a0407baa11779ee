"""Moves convolution weights, their gradients and their optimizer's state to another memory layout, together.

Together, because a fused optimizer step reads all of them in the order of memory: with two layouts it computes wrong
numbers on a CPU, without an error, and fails on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Layout:
    """The weights of one root that are moved, by identity of the parameter."""

    def __init__(self, torch: Any, root: Any) -> None:
        self._torch = torch
        flat, deep = torch.nn.modules.conv, torch.channels_last_3d
        two = (flat.Conv2d, flat.ConvTranspose2d)
        three = (flat.Conv3d, flat.ConvTranspose3d)
        self.formats: dict[int, Any] = {}
        self.weights: list[Any] = []
        for one in root.modules():
            if isinstance(one, (*two, *three)) and one.weight is not None:
                self.formats[id(one.weight)] = torch.channels_last if isinstance(one, two) else deep
                self.weights.append(one.weight)

    def put(self, optimizers: Iterable[Any], last: bool) -> None:
        for weight in self.weights:
            weight.data = self._moved(weight, weight.data, last)
            if weight.grad is not None:
                weight.grad = self._moved(weight, weight.grad, last)
        for optimizer in optimizers:
            self.put_state(optimizer, last)

    def put_state(self, optimizer: Any, last: bool) -> None:
        for weight in self.weights:
            state = optimizer.state.get(weight, {})
            for name, value in state.items():
                if isinstance(value, self._torch.Tensor) and value.shape == weight.shape:
                    state[name] = self._moved(weight, value, last)

    def as_saved(self, optimizer: Any, saved: dict[str, Any]) -> dict[str, Any]:
        """A state dict whose tensors are contiguous again, for whoever loads it without us."""
        order = [one for group in optimizer.param_groups for one in group["params"]]
        state = dict(saved["state"])
        for index, weight in enumerate(order):
            if id(weight) in self.formats and index in state:
                state[index] = {
                    name: self._moved(weight, value, False) if getattr(value, "shape", None) == weight.shape else value
                    for name, value in state[index].items()
                }
        return {**saved, "state": state}

    def _moved(self, weight: Any, tensor: Any, last: bool) -> Any:
        wanted = self.formats[id(weight)] if last else self._torch.contiguous_format
        return tensor.contiguous(memory_format=wanted)


def shaped(torch: Any, structure: Any, last: bool) -> Any:
    """The structure with its image-like tensors in the layout wanted; the tensors given stay as they are."""
    from torch.utils._pytree import tree_map

    formats = {4: torch.channels_last, 5: torch.channels_last_3d}

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() not in formats or not leaf.is_floating_point():
            return leaf
        return leaf.contiguous(memory_format=formats[leaf.dim()] if last else torch.contiguous_format)

    return tree_map(moved, structure)
