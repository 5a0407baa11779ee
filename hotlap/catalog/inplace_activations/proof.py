"""Which activations may work in place: outputs, gradients and inputs stay the same, bit by bit."""

from __future__ import annotations

from typing import Any

from hotlap.catalog.rehearsal import Rehearsed, rehearse

MOST_ATTEMPTS = 14


class Proof:
    def __init__(self, torch: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._torch, self._module, self._given = torch, module, (args, kwargs)
        self._attempts = 0
        self._plain: Rehearsed | None = None
        self.why = "outputs or gradients would differ"

    def of(self, candidates: list[Any]) -> list[Any]:
        """The largest part found that is proven as a whole; empty, and `why`, when there is none."""
        plain = self._plain = self._rehearsed([])
        again = self._rehearsed([])
        if plain is None or again is None:
            self.why = "the model could not be run a second time on its input"
        elif not plain.gradients:
            self.why = "its outputs hold no tensors that could be compared"
        elif plain.kept:
            self.why = "its forward keeps attributes that might be overwritten"
        elif not plain.equals(again):
            self.why = "two plain passes give different bits, so nothing can be proven"
        else:
            found = self._search(candidates)
            return found if len(found) == len(candidates) or self._holds(found) else []
        return []

    def _search(self, candidates: list[Any]) -> list[Any]:
        """By halves: those that hold together."""
        if self._holds(candidates):
            return candidates
        if len(candidates) < 2:
            return []
        middle = len(candidates) // 2
        return self._search(candidates[:middle]) + self._search(candidates[middle:])

    def _holds(self, chosen: list[Any]) -> bool:
        if not chosen or self._attempts >= MOST_ATTEMPTS or self._plain is None:
            return False
        tried = self._rehearsed(chosen)
        return tried is not None and tried.equals(self._plain)

    def _rehearsed(self, chosen: list[Any]) -> Rehearsed | None:
        """None: autograd found that something it needs was overwritten, or memory did not suffice."""
        self._attempts += 1
        for one in chosen:
            one.__dict__["inplace"] = True
        try:
            return rehearse(self._torch, self._module, *self._given)
        except RuntimeError:
            return None
        finally:
            for one in chosen:
                one.__dict__["inplace"] = False
