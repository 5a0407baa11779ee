"""What a recording is made for: inputs of one kind, and the tensors it reads them from."""

from __future__ import annotations

from typing import Any

WIDEST = 16  # bytes that a thread reads at once


def kinds_of(torch: Any, leaves: list[Any], device_type: str, differentiated: bool = False) -> list[Any] | None:
    """None: these cannot be the inputs of a recording. `differentiated`: they may be what a backward leads to."""
    kinds = _casts(torch, device_type)
    for leaf in leaves:
        if type(leaf) is torch.Tensor:
            if leaf.device.type != device_type or (leaf.requires_grad and not differentiated):
                return None
            if leaf.data_ptr() % WIDEST:
                return None
            kinds.append((*_kind(leaf), leaf.requires_grad))
        elif leaf is None or isinstance(leaf, bool | int | float | str):
            kinds.append((type(leaf), leaf))
        else:
            return None
    return kinds


def _kind(tensor: Any) -> tuple[Any, ...]:
    """With where it begins: a kernel reads sixteen bytes at once where it can, and dropout then draws in another order.
    What is recorded reads memory that begins at a multiple of them.
    """
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.data_ptr() % WIDEST


def _casts(torch: Any, device_type: str) -> list[Any]:
    return [torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)]


class Inputs:
    """`differentiated`: a backward may lead to them."""

    def __init__(
        self,
        torch: Any,
        device_type: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        differentiated: bool = False,
    ) -> None:
        self._torch, self._device_type, self._differentiated = torch, device_type, differentiated
        self._tree = torch.utils._pytree
        leaves, self._shape = self._tree.tree_flatten((args, kwargs))
        self._kinds = kinds_of(torch, leaves, device_type, differentiated)
        self._held = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        # Tensors one after the other are what most models take; looking through containers costs ten times as much.
        self._in_a_row = not kwargs and bool(args) and all(type(one) is torch.Tensor for one in args)
        self._row = [(_kind(one), one.requires_grad) for one in args] if self._in_a_row else []
        self._tensors = [n for n, one in enumerate(self._held) if isinstance(one, torch.Tensor)]
        self._trained = [n for n in self._tensors if leaves[n].requires_grad]
        self.sources: list[Any] = []  # those that a backward leads to, of the last arguments

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a backward leads to is a tensor of its own each time, over the held memory."""
        leaves = list(self._held)
        for n in self._trained:
            leaves[n] = leaves[n].detach().requires_grad_()
        self.sources = [leaves[n] for n in self._trained]
        args, kwargs = self._tree.tree_unflatten(leaves, self._shape)
        return args, kwargs

    def sources_of(self, leaves: Any) -> list[Any]:
        """The program's own, of a call that fits."""
        return [leaves[n] for n in self._trained]

    def versions(self) -> list[int]:
        return [self._held[n]._version for n in self._tensors]

    def fitting(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The leaves of a call, or None where they are of another kind."""
        if self._in_a_row:
            return args if not kwargs and self._is_the_row(args) else None
        leaves, shape = self._tree.tree_flatten((args, kwargs))
        if shape != self._shape:
            return None
        kinds = kinds_of(self._torch, leaves, self._device_type, self._differentiated)
        return leaves if kinds == self._kinds else None

    def _is_the_row(self, args: tuple[Any, ...]) -> bool:
        """The same as comparing their kinds, in a third less of the host's time."""
        if len(args) != len(self._row):
            return False
        tensor = self._torch.Tensor
        for one, (kind, is_trained) in zip(args, self._row, strict=True):
            if type(one) is not tensor or one.requires_grad is not is_trained:
                return False
            if _kind(one) != kind:
                return False
        return self._kinds is not None and _casts(self._torch, self._device_type) == self._kinds[:2]

    def take(self, leaves: Any) -> None:
        for n in self._tensors:
            self._held[n].copy_(leaves[n].detach() if n in self._trained else leaves[n])

    def forget(self) -> None:
        self._held, self._tensors, self._trained, self.sources = [], [], [], []
