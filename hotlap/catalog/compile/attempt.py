"""The first call with compiled code: how long it took, what Dynamo made of it, and the way back if it failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

FEWEST = 2.0  # operations a graph, on average; below that the breaks between graphs cost more than they save


class NotWorthIt(Exception):
    """It compiled, but into nothing or into crumbs."""


class FirstCall:
    def __init__(self, torch: Any, module: Any) -> None:
        self._torch = torch
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
        self._host = torch.get_rng_state()
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self._device = torch.cuda.get_rng_state() if cuda else None
        self._seconds = {"forward": 0.0}
        self._since: float | None = None

    def undo(self) -> None:
        """Random streams and buffers as before the call."""
        self._torch.set_rng_state(self._host)
        if self._device is not None:
            self._torch.cuda.set_rng_state(self._device)
        with self._torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        self.forget()

    def forget(self) -> None:
        self._buffers = []

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Backward is compiled along with forward, not in the first backward, where a failure could not be undone."""
        since = perf_counter()
        with _backward_at_once(self._torch):
            yield
        self._seconds["forward"] = perf_counter() - since

    def backward_begins(self) -> None:
        self._since = perf_counter()

    def backward_ends(self) -> None:
        self.forget()
        if self._since is not None:
            self._seconds["first backward"] = perf_counter() - self._since

    def __str__(self) -> str:
        return "compiled in " + ", ".join(f"{seconds:.1f} s ({what})" for what, seconds in self._seconds.items())


@contextmanager
def _backward_at_once(torch: Any) -> Iterator[None]:
    from torch._functorch import config

    if not hasattr(config, "force_non_lazy_backward_lowering"):
        yield
        return
    with config.patch(force_non_lazy_backward_lowering=True):
        yield


@dataclass(frozen=True)
class Compiled:
    """What was made of a forward, for how many models in turn; Dynamo gives up on code compiled too often."""

    code: Any
    graphs: int = 0
    operations: int = 0
    times: int = 0


class Graphs:
    """Dynamo's own counts, of one call."""

    def __init__(self) -> None:
        self._before = (0, 0)
        self._graphs = self._operations = 0

    def start(self) -> None:
        self._before = counts()

    def judge(self, code: Any, earlier: Compiled) -> Compiled:
        graphs, operations = counts()
        self._graphs, self._operations = graphs - self._before[0], operations - self._before[1]
        if self._graphs == 0 and earlier.times > 0:
            self._graphs, self._operations = earlier.graphs, earlier.operations
            return earlier
        if self._graphs == 0:
            raise NotWorthIt("Dynamo compiled nothing of it")
        if self._graphs > 1 and self._operations / self._graphs < FEWEST:
            raise NotWorthIt(f"it broke into {self._graphs} graphs of {self._operations} operations in all")
        return Compiled(code, self._graphs, self._operations, earlier.times + 1)

    def grown(self) -> bool:
        """Whether the call had to be compiled again."""
        return counts()[0] > self._before[0]

    def __str__(self) -> str:
        noun = "graph" if self._graphs == 1 else "graphs"
        return f"{self._operations} operations in {self._graphs} {noun}"


def counts() -> tuple[int, int]:
    """Graphs made and operations in them."""
    from torch._dynamo.utils import counters

    stats = counters["stats"]
    return stats["unique_graphs"], stats["calls_captured"]
