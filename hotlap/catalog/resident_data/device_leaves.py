"""Finds the leaves of a batch that could be on the device from the start: those only ever moved there.

The first batches are handed out as tensors that notice what is done to them. They are tensors in every other respect:
each operation runs as usual, and its result is a plain tensor. A leaf is moved for good only if, in all of these
batches, it was copied to the same device exactly once, nothing else read its values, and nobody kept it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch

WATCHED = 2  # batches
SETTLED = 5  # batches requested, by when the watched ones must be freed: frameworks fetch ahead
DEVICES = frozenset({"cuda"})
SAME_ANYWHERE = frozenset(
    "shape ndim dtype layout requires_grad is_leaf size dim numel nelement element_size stride is_contiguous "
    "__len__ is_floating_point is_complex is_sparse is_nested is_quantized".split()
)
MADE_PLAIN = frozenset({"__reduce_ex__", "__deepcopy__"})  # a saved or copied tensor must be a plain one


class Notes:
    def __init__(self, devices: frozenset[str]) -> None:
        self._devices = devices
        self.device: torch.device | None = None
        self.touched = False
        self.kept: weakref.ref[torch.Tensor] | None = None

    def called(self, name: str, arguments: tuple[Any, ...], outcome: Any) -> None:
        if name in SAME_ANYWHERE:
            return
        device = _target(name, arguments, outcome)
        if device is None or device.type not in self._devices or self.device is not None:
            self.touched = True
        else:
            self.device = device

    @property
    def verdict(self) -> torch.device | None:
        gone = self.kept is not None and self.kept() is None
        return self.device if gone and not self.touched else None


def _target(name: str, arguments: tuple[Any, ...], outcome: Any) -> torch.device | None:
    """Return the device that a call copied the watched tensor to, if it did."""
    if name in ("to", "cuda"):
        return outcome.device if isinstance(outcome, torch.Tensor) else None
    if name == "copy_" and not isinstance(arguments[0], WatchedTensor):
        return torch.device(arguments[0].device)
    return None


class WatchedTensor(torch.Tensor):
    notes: Notes

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _name(func)
        watched = list(_watched_in((args, kwargs)))
        if name in MADE_PLAIN:
            args = (args[0].as_subclass(torch.Tensor), *args[1:])
        with torch._C.DisableTorchFunctionSubclass():
            outcome = func(*args, **(kwargs or {}))
        for tensor in watched:
            tensor.notes.called(name, args, outcome)
        return outcome


# For printing: torch writes the name of a subclass where it writes "tensor" for its own.
WatchedTensor.__name__ = WatchedTensor.__qualname__ = "tensor"
WatchedTensor.__module__ = "torch"


def _name(func: Any) -> str:
    name = getattr(func, "__name__", "")
    return getattr(func.__self__, "__name__", name) if name in ("__get__", "__set__") else name


def _watched_in(container: Any, depth: int = 0) -> Iterator[WatchedTensor]:
    if isinstance(container, WatchedTensor):
        yield container
    elif isinstance(container, list | tuple | dict) and depth < 4:
        for element in container.values() if isinstance(container, dict) else container:
            yield from _watched_in(element, depth + 1)


class DeviceLeaves:
    """Learns from the first batches of a loader which leaves the program moves to a device."""

    def __init__(self, devices: frozenset[str] = DEVICES) -> None:
        self._devices = devices
        self._asked = 0
        self._notes: list[list[Notes | None]] = []
        self.settled = False
        self.devices: dict[int, torch.device] = {}  # leaf → target device
        self.waiting: dict[int, torch.device] = {}  # the same, until every item is cached and can be copied

    def asked(self) -> bool:
        """Count a requested batch; return whether this one settled which leaves move."""
        if self.settled:
            return False
        self._asked += 1
        if self._asked < SETTLED:
            return False
        self.settled = True
        self.devices = dict(self._found())
        self._notes.clear()
        return True

    def watch(self, leaves: list[Any]) -> list[Any]:
        """Return the leaves, with those on the host as watched tensors."""
        if self.settled or len(self._notes) >= WATCHED:
            return leaves
        notes: list[Notes | None] = []
        watched = [self._watched(leaf, notes) for leaf in leaves]
        self._notes.append(notes)
        return watched

    def _watched(self, leaf: Any, notes: list[Notes | None]) -> Any:
        if type(leaf) is not torch.Tensor or leaf.device.type != "cpu" or leaf.requires_grad:
            notes.append(None)
            return leaf
        own_notes = Notes(self._devices)
        watched = leaf.as_subclass(WatchedTensor)
        watched.notes = own_notes
        own_notes.kept = weakref.ref(watched)
        notes.append(own_notes)
        return watched

    def _found(self) -> Iterator[tuple[int, torch.device]]:
        if len({len(notes) for notes in self._notes}) != 1:
            return
        for leaf, several in enumerate(zip(*self._notes, strict=True)):
            verdicts = {None if leaf_notes is None else leaf_notes.verdict for leaf_notes in several}
            device = verdicts.pop()
            if not verdicts and device is not None:
                yield leaf, device
