"""What a replayed backward writes, and how the parameters get it.

Through autograd, a node for each parameter adds what it is given. Where the user's backward is the plain one, of all
leaves, the same is done here without these nodes: they cost more than the rest of a replayed step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

_gradient: Any = attrgetter("grad")
_hooks: Any = attrgetter("_backward_hooks")
_later_hooks: Any = attrgetter("_post_accumulate_grad_hooks")


class Gradients:
    def __init__(self, torch: Any, parameters: list[Any], recorded: list[Any], reached: list[list[bool]]) -> None:
        """`reached`: for each output that is differentiated, which parameters it depends on."""
        self._torch, self._parameters, self._reached = torch, parameters, reached
        self._recorded = recorded
        self._handed: list[Any] = [None if one is None else one.detach() for one in recorded]  # what a parameter holds
        self._usual = self._references()
        self._storages = [None if one is None else one.untyped_storage() for one in recorded]
        self._of_storages = [one._cdata for one in self._storages if one is not None]
        self._numbers = [n for n, one in enumerate(recorded) if one is not None]
        # Older builds without CUDA, in which nothing is replayed, do not have it.
        self._count_uses = getattr(torch._C, "_storage_Use_Count", lambda storage: 1)
        self._usual_uses = self._uses()
        self._masks: dict[tuple[bool, ...], list[bool]] = {}
        self._of_all = self._mask([True] * len(reached))
        self.direct = False

    def after(self, replay: Callable[[], None], given: list[bool]) -> tuple[Any, ...]:
        """Replays; what autograd is to add to the gradients there are."""
        if self.direct and not self.is_hooked():
            self._add(replay, self._mask(given))
            return (None,) * len(self._parameters)
        old = self._still_held()
        self._let_go_of_kept(old)
        made = self._replayed(replay, {}, old)  # nobody knows whether autograd will add to them, or only hand them out
        return tuple(
            (made[n] if n in made else one.detach()) if wanted else None
            for n, (one, wanted) in enumerate(zip(self._recorded, self._mask(given), strict=True))
        )

    def add(self, replay: Callable[[], None]) -> None:
        """The same with all outputs given, outside of autograd."""
        self._add(replay, self._of_all)

    def _add(self, replay: Callable[[], None], mask: list[bool]) -> None:
        if all(map(is_, map(_gradient, self._parameters), repeat(None))):  # dropped before each step, as is usual
            self._let_go_of_kept({})
            made = self._replayed(replay, {})
            for n, (parameter, one, wanted) in enumerate(zip(self._parameters, self._handed, mask, strict=True)):
                if wanted:
                    parameter.grad = made.get(n, one) if made else one
            return
        with self._torch.no_grad():
            self._add_to_some(replay, mask)

    def _add_to_some(self, replay: Callable[[], None], mask: list[bool]) -> None:
        old = self._still_held()
        self._let_go_of_kept(old)
        made = self._replayed(replay, old)
        sums, added = [self._parameters[n].grad for n in old], list(old.values())
        for n, (parameter, one) in enumerate(zip(self._parameters, self._handed, strict=True)):
            if n in old or not mask[n]:
                continue
            if parameter.grad is None:
                parameter.grad = made.get(n, one)
            else:
                sums.append(parameter.grad)
                added.append(made.get(n, one))
        if sums:
            self._torch._foreach_add_(sums, added)

    def _still_held(self) -> dict[int, Any]:
        """Gradients that lie in recorded memory (they were zeroed in place, or not at all): the replay overwrites them,
        so the old value is what is added to the new one.
        """
        held = {}
        for n, (parameter, recorded) in enumerate(zip(self._parameters, self._recorded, strict=True)):
            gradient = parameter.grad
            if gradient is not None and recorded is not None and gradient.data_ptr() == recorded.data_ptr():
                held[n] = gradient
        copies = [self._torch.empty_like(one) for one in held.values()]
        if copies:
            self._torch._foreach_copy_(copies, list(held.values()))
        return dict(zip(held, copies, strict=True))

    def _let_go_of_kept(self, old: dict[int, Any]) -> None:
        """A gradient that the user kept from an earlier step gets memory of its own before it is overwritten."""
        references = self._references()
        if references == self._usual:
            return
        for n, (count, usual) in enumerate(zip(references, self._usual, strict=True)):
            if count > usual and n not in old and self._handed[n] is not None:
                self._handed[n].data = self._handed[n].clone()
                self._handed[n] = self._recorded[n].detach()

    def _replayed(
        self, replay: Callable[[], None], old: dict[int, Any], before: dict[int, Any] | None = None
    ) -> dict[int, Any]:
        """Where the user looks at recorded memory through a view of a gradient, its values are put back afterwards, and
        the new gradient, by its number, has memory of its own. So it is with those in `before`.
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
        """Of the memory of each gradient: ours, and views of it."""
        return list(map(self._count_uses, self._of_storages))

    def _references(self) -> list[int]:
        """To each gradient we hand out, ours and the user's; a parameter that holds it does not count."""
        return list(map(sys.getrefcount, self._handed))

    def _mask(self, given: list[bool]) -> list[bool]:
        key = tuple(given)
        if key not in self._masks:
            reached = [each for each, one in zip(self._reached, given, strict=True) if one]
            self._masks[key] = [any(each[n] for each in reached) for n in range(len(self._parameters))]
        return self._masks[key]

    def is_hooked(self) -> bool:
        return any(map(_hooks, self._parameters)) or any(map(_later_hooks, self._parameters))

    def forget(self) -> None:
        self._recorded, self._handed, self._parameters, self._storages = [], [], [], []
        self._of_storages, self._numbers, self._usual_uses = [], [], []
