"""The first call with compiled code: how long it took, what Dynamo made of it, and how to undo it if it failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter
from typing import Any

from hotlap.runtime.attributes import Attributes
from hotlap.runtime.host_streams import HostStreams

NEAR, NEAR_IN_HALF = 1e-2, 1e-1  # of the largest element: rounding is far less, a different dropout mask far more
FEWEST = 2.0  # operations a graph, on average; below that the breaks between graphs cost more than they save


class NotWorthIt(Exception):
    """Raised when a model compiles into nothing, or into many tiny graphs."""


class Before:
    """A snapshot of random streams, buffers and attributes before a call, to repeat it in another way."""

    def __init__(self, torch: Any, module: Any) -> None:
        self._torch = torch
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
        self._attributes = [Attributes(submodule) for submodule in module.modules()]
        self._streams, self._on_host = self._now(), HostStreams()

    def _now(self) -> list[Any]:
        torch = self._torch
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        return [torch.get_rng_state(), torch.cuda.get_rng_state() if cuda else None, *HostStreams().states]

    def moved(self) -> Any:
        """Return the state of the random streams if any of them has moved, else None."""
        now = [repr(state.tolist()) if isinstance(state, self._torch.Tensor) else repr(state) for state in self._now()]
        then = [
            repr(state.tolist()) if isinstance(state, self._torch.Tensor) else repr(state) for state in self._streams
        ]
        return now if now != then else None

    def undo(self) -> None:
        torch, (host, device, *_) = self._torch, self._streams
        torch.set_rng_state(host)
        if device is not None:
            torch.cuda.set_rng_state(device)
        self._on_host.put_back()
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        for attributes in self._attributes:
            attributes.restore()


class FirstCall:
    def __init__(self) -> None:
        self._seconds = {"forward": 0.0}
        self._since: float | None = None

    @contextmanager
    def timed(self) -> Iterator[None]:
        since = perf_counter()
        yield
        self._seconds["forward"] = perf_counter() - since

    def backward_begins(self) -> None:
        self._since = perf_counter()

    def backward_ends(self) -> None:
        if self._since is not None:
            self._seconds["first backward"] = perf_counter() - self._since

    def __str__(self) -> str:
        return "compiled in " + ", ".join(f"{seconds:.1f} s ({what})" for what, seconds in self._seconds.items())


@contextmanager
def backward_at_once() -> Iterator[None]:
    """Compile backward along with forward, not in the first backward, where a failure could not be undone."""
    from torch._functorch import config

    if not hasattr(config, "force_non_lazy_backward_lowering"):
        yield
        return
    with config.patch(force_non_lazy_backward_lowering=True):
        yield


@dataclass(frozen=True)
class CompiledForward:
    """The code of a forward, and how many models it was compiled for; Dynamo gives up on code compiled too often."""

    code: Any
    graphs: int = 0
    operations: int = 0
    times: int = 0


class Graphs:
    """Dynamo's own counts for one call."""

    def __init__(self) -> None:
        self._before = (0, 0)
        self._graphs = self._operations = 0

    def start(self) -> None:
        self._before = counts()

    def judge(self, code: Any, earlier: CompiledForward) -> CompiledForward:
        graphs, operations = counts()
        self._graphs, self._operations = graphs - self._before[0], operations - self._before[1]
        if self._graphs == 0 and earlier.times > 0:
            self._graphs, self._operations = earlier.graphs, earlier.operations
            return earlier
        if self._graphs == 0:
            raise NotWorthIt("Dynamo compiled nothing of it")
        if self._graphs > 1 and self._operations / self._graphs < FEWEST:
            raise NotWorthIt(f"it broke into {self._graphs} graphs of {self._operations} operations in all")
        return CompiledForward(code, self._graphs, self._operations, earlier.times + 1)

    def grown(self) -> bool:
        """Whether the call had to be compiled again."""
        return counts()[0] > self._before[0]

    def __str__(self) -> str:
        noun = "graph" if self._graphs == 1 else "graphs"
        return f"{self._operations} operations in {self._graphs} {noun}"


def counts() -> tuple[int, int]:
    """Return the number of graphs that Dynamo made, and of operations in them."""
    from torch._dynamo.utils import counters

    stats = counters["stats"]
    return stats["unique_graphs"], stats["calls_captured"]


def near(torch: Any, outcome: Any, plain: Any) -> bool:
    """Whether two outcomes are the same but for rounding. Host sync, in the first calls only."""
    tensors, references = (torch.utils._pytree.tree_leaves(structure) for structure in (outcome, plain))
    return len(tensors) == len(references) and all(map(_near, repeat(torch), tensors, references))


def _near(torch: Any, tensor: Any, reference: Any) -> bool:
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or not tensor.numel():
        return True
    halves = (torch.float16, torch.bfloat16)
    in_half = tensor.dtype in halves or torch.is_autocast_enabled(tensor.device.type)
    tensor, reference = tensor.detach().double().nan_to_num(), reference.detach().double().nan_to_num()
    most = (NEAR_IN_HALF if in_half else NEAR) * float(reference.abs().max())
    return tensor.shape == reference.shape and bool((tensor - reference).abs().max() <= most)
