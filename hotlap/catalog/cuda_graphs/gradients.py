"""What a replayed backward writes, and how the parameters receive it.

Autograd adds gradients through one node per parameter. Where the user calls a plain backward over all leaves, the same
is done here without these nodes, which cost more than the rest of a replayed step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

_gradient: Any = attrgetter("grad")
_hooks: Any = attrgetter("_backward_hooks")
_later_hooks: Any = attrgetter("_post_accumulate_grad_hooks")


class Gradients:
    def __init__(self, torch: Any, parameters: list[Any], recorded: list[Any], reached: list[list[bool]]) -> None:
        """`reached` says, for each differentiated output, which parameters it depends on."""
        self._torch, self._parameters, self._reached = torch, parameters, reached
        self._recorded = recorded
        # The tensors that parameters hold as `grad`.
        self._views: list[Any] = [None if gradient is None else gradient.detach() for gradient in recorded]
        self._usual = self._references()
        self._storages = [None if gradient is None else gradient.untyped_storage() for gradient in recorded]
        self._of_storages = [gradient._cdata for gradient in self._storages if gradient is not None]
        self._numbers = [n for n, gradient in enumerate(recorded) if gradient is not None]
        # Older builds without CUDA lack it; nothing is replayed in them.
        self._count_uses = getattr(torch._C, "_storage_Use_Count", lambda storage: 1)
        self._usual_uses = self._uses()
        self._masks: dict[tuple[bool, ...], list[bool]] = {}
        self._of_all = self._mask([True] * len(reached))
        self.direct = False

    def after(self, replay: Callable[[], None], given: list[bool]) -> tuple[Any, ...]:
        """Replay, and return what autograd is to add to the existing gradients."""
        if self.direct and not self.is_hooked():
            self._add(replay, self._mask(given))
            return (None,) * len(self._parameters)
        old = self._still_held()
        self._release_retained(old)
        made = self._replayed(replay, {}, old)  # autograd may add to them or only pass them on
        return tuple(
            (made[n] if n in made else recorded.detach()) if wanted else None
            for n, (recorded, wanted) in enumerate(zip(self._recorded, self._mask(given), strict=True))
        )

    def add(self, replay: Callable[[], None]) -> None:
        """Replay with the derivatives of all outputs, and add the gradients without autograd."""
        self._add(replay, self._of_all)

    def _add(self, replay: Callable[[], None], mask: list[bool]) -> None:
        if all(map(is_, map(_gradient, self._parameters), repeat(None))):  # dropped before each step, as usual
            self._release_retained({})
            made = self._replayed(replay, {})
            for n, (parameter, view, wanted) in enumerate(zip(self._parameters, self._views, mask, strict=True)):
                if wanted:
                    parameter.grad = made.get(n, view) if made else view
            return
        with self._torch.no_grad():
            self._add_to_some(replay, mask)

    def _add_to_some(self, replay: Callable[[], None], mask: list[bool]) -> None:
        old = self._still_held()
        self._release_retained(old)
        made = self._replayed(replay, old)
        sums, added = [self._parameters[n].grad for n in old], list(old.values())
        for n, (parameter, view) in enumerate(zip(self._parameters, self._views, strict=True)):
            if n in old or not mask[n]:
                continue
            if parameter.grad is None:
                parameter.grad = made.get(n, view)
            else:
                sums.append(parameter.grad)
                added.append(made.get(n, view))
        if sums:
            self._torch._foreach_add_(sums, added)

    def _still_held(self) -> dict[int, Any]:
        """Copy the gradients that lie in captured memory (zeroed in place, or not at all): the replay overwrites them,
        so the old value is added to the new one.
        """
        held = {}
        for n, (parameter, recorded) in enumerate(zip(self._parameters, self._recorded, strict=True)):
            gradient = parameter.grad
            if gradient is not None and recorded is not None and gradient.data_ptr() == recorded.data_ptr():
                held[n] = gradient
        copies = [self._torch.empty_like(gradient) for gradient in held.values()]
        if copies:
            self._torch._foreach_copy_(copies, list(held.values()))
        return dict(zip(held, copies, strict=True))

    def _release_retained(self, old: dict[int, Any]) -> None:
        """Give gradients that the user retained from an earlier step their own memory before they are overwritten."""
        references = self._references()
        if references == self._usual:
            return
        for n, (count, usual) in enumerate(zip(references, self._usual, strict=True)):
            if count > usual and n not in old and self._views[n] is not None:
                self._views[n].data = self._views[n].clone()
                self._views[n] = self._recorded[n].detach()

    def _replayed(
        self, replay: Callable[[], None], old: dict[int, Any], before: dict[int, Any] | None = None
    ) -> dict[int, Any]:
        """Replay, and return by number the new gradients that need memory of their own: those of which the user holds a
        view, whose old values are restored after the replay, and those in `before`.
        """
        uses, before = self._uses(), before or {}
        if uses == self._usual_uses and not before:
            replay()
            return {}
        seen = [n for n, now, usual in zip(self._numbers, uses, self._usual_uses, strict=True) if now > usual]
        before = {**{n: self._recorded[n].clone() for n in seen if n not in old}, **before}
        replay()
        made = {n: self._recorded[n].clone() for n in before}
        for n, values in before.items():
            self._recorded[n].copy_(values)
        return made

    def _uses(self) -> list[int]:
        """Count the uses of each gradient's memory: ours, and views of it."""
        return list(map(self._count_uses, self._of_storages))

    def _references(self) -> list[int]:
        """Count the references to each gradient handed out, ours and the user's; a parameter's own does not count."""
        return list(map(sys.getrefcount, self._views))

    def _mask(self, given: list[bool]) -> list[bool]:
        key = tuple(given)
        if key not in self._masks:
            reached = [parameters for parameters, is_given in zip(self._reached, given, strict=True) if is_given]
            self._masks[key] = [any(parameters[n] for parameters in reached) for n in range(len(self._parameters))]
        return self._masks[key]

    def is_hooked(self) -> bool:
        return any(map(_hooks, self._parameters)) or any(map(_later_hooks, self._parameters))

    def forget(self) -> None:
        self._recorded, self._views, self._parameters, self._storages = [], [], [], []
        self._of_storages, self._numbers, self._usual_uses = [], [], []


def apart(torch: Any, found: Sequence[Any], leaves: Sequence[Any], upstream: list[Any]) -> list[Any]:
    """Give each gradient memory of its own, laid out like its leaf, as autograd would when storing it."""
    taken = [_extent(tensor) for tensor in upstream]
    gradients: list[Any] = []
    for gradient, leaf in zip(found, leaves, strict=True):
        held = gradient
        if gradient is not None:
            start, end = _extent(gradient)
            if gradient.stride() != leaf.stride() or any(start < last and first < end for first, last in taken):
                held = torch.empty_like(leaf, requires_grad=False).copy_(gradient)
            taken.append(_extent(held))
        gradients.append(held)
    return gradients


def _extent(tensor: Any) -> tuple[int, int]:
    """Return the start and the end of a tensor's memory, for tensors without gaps."""
    start = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.element_size()
