"""What a capture is made for: inputs of one kind, and the tensors it reads them from."""

from __future__ import annotations

from typing import Any

WIDEST = 16  # bytes that a thread reads at once


def kinds_of(torch: Any, leaves: list[Any], device_type: str, differentiated: bool = False) -> list[Any] | None:
    """Return the kinds of the leaves, or None if they cannot be captured. `differentiated` permits gradients."""
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
    """Return the kind of a tensor, with its alignment: a kernel reads sixteen bytes at once where it can, and dropout
    then draws in another order. A capture reads memory that begins at a multiple of sixteen bytes.
    """
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.data_ptr() % WIDEST


def _casts(torch: Any, device_type: str) -> list[Any]:
    return [torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)]


class Inputs:
    """The tensors that a capture reads. `differentiated` means that a backward may reach them."""

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
        # Most models take plain positional tensors; flattening containers costs ten times as much.
        self._in_a_row = not kwargs and bool(args) and all(type(argument) is torch.Tensor for argument in args)
        self._row = [(_kind(argument), argument.requires_grad) for argument in args] if self._in_a_row else []
        self._tensors = [n for n, leaf in enumerate(self._held) if isinstance(leaf, torch.Tensor)]
        self._trained = [n for n in self._tensors if leaves[n].requires_grad]
        self.sources: list[Any] = []  # the differentiable tensors of the last arguments

    @property
    def tensors(self) -> list[Any]:
        return [self._held[n] for n in self._tensors]

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a run. Differentiable ones are new tensors each time, over the same memory."""
        leaves = list(self._held)
        for n in self._trained:
            leaves[n] = leaves[n].detach().requires_grad_()
        self.sources = [leaves[n] for n in self._trained]
        args, kwargs = self._tree.tree_unflatten(leaves, self._shape)
        return args, kwargs

    def sources_of(self, leaves: Any) -> list[Any]:
        """Return the program's own differentiable tensors in a matching call."""
        return [leaves[n] for n in self._trained]

    def versions(self) -> list[int]:
        return [self._held[n]._version for n in self._tensors]

    def fitting(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the leaves of a call, or None if they are of another kind."""
        if self._in_a_row:
            return args if not kwargs and self._is_the_row(args) else None
        leaves, shape = self._tree.tree_flatten((args, kwargs))
        if shape != self._shape:
            return None
        kinds = kinds_of(self._torch, leaves, self._device_type, self._differentiated)
        return leaves if kinds == self._kinds else None

    def _is_the_row(self, args: tuple[Any, ...]) -> bool:
        """Whether positional tensors match the captured ones; takes a third less host time than comparing kinds."""
        if len(args) != len(self._row):
            return False
        tensor = self._torch.Tensor
        for argument, (kind, is_trained) in zip(args, self._row, strict=True):
            if type(argument) is not tensor or argument.requires_grad is not is_trained:
                return False
            if _kind(argument) != kind:
                return False
        return self._kinds is not None and _casts(self._torch, self._device_type) == self._kinds[:2]

    def take(self, leaves: Any) -> None:
        for n in self._tensors:
            self._held[n].copy_(leaves[n].detach() if n in self._trained else leaves[n])

    def forget(self) -> None:
        self._held, self._tensors, self._trained, self.sources = [], [], [], []
