"""Programs that update their weights without a torch optimizer: each backward pass counts as a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from hotlap.observe import tape as t
from hotlap.patch.seams import Entry, Seams

ENOUGH = 8  # backward passes without any optimizer, after which they count as the steps
MOST_NODES = 100_000  # graph nodes of a loss to visit, once, to find the weights


class Backwards:
    """Counts backward passes until an optimizer is created, which most programs do before the first one."""

    def __init__(
        self,
        seams: Seams,
        tape: list[Entry],
        trains: Callable[[Iterable[Any]], None],
        step_ends: Callable[[], None],
    ) -> None:
        self._seams, self._tape, self._trains, self._step_ends = seams, tape, trains, step_ends
        self._seen = 0

    def begin(self) -> None:
        self._seams.backward.subscribe(after=self._ended)

    def end(self) -> None:
        self._seams.backward.unsubscribe(self._ended)

    def _ended(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any], __: Any) -> None:
        self._seen += 1
        if self._seen < ENOUGH:
            return
        if self._seen == ENOUGH:
            self._trains(_leaves(args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))))
        now, thread = perf_counter_ns(), get_ident()
        self._tape += [(t.STEP, now, thread, 0), (t.STEPPED, now, thread, 0)]
        self._step_ends()


def _leaves(losses: Any) -> Iterator[Any]:
    """Yield the leaf tensors that a loss was computed from."""
    roots: Iterable[Any] = losses if isinstance(losses, list | tuple) else (losses,)
    pending = [node for loss in roots if (node := getattr(loss, "grad_fn", None)) is not None]
    seen = set(pending)
    while pending and len(seen) < MOST_NODES:
        node = pending.pop()
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                pending.append(after)
