"""Image-like tensors in another memory layout, with the same values."""

from __future__ import annotations

from typing import Any


def shaped(torch: Any, structure: Any, last: bool) -> Any:
    """Return the structure with its image-like tensors in the requested layout; the given tensors are not modified."""
    from torch.utils._pytree import tree_map

    formats = {4: torch.channels_last, 5: torch.channels_last_3d}

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() not in formats or not leaf.is_floating_point():
            return leaf
        if last and leaf.shape[1] == 1 and leaf.is_contiguous():
            return _single_channel_last(leaf)
        return leaf.contiguous(memory_format=formats[leaf.dim()] if last else torch.contiguous_format)

    return tree_map(moved, structure)


def _single_channel_last(tensor: Any) -> Any:
    """Mark the layout by the strides: with one channel both layouts are the same memory, and later layers read them."""
    strides = list(tensor.stride())
    strides[1] = 1
    return tensor.as_strided(tensor.shape, strides)
