"""Device work captured once and replayed: the only module of the engine that knows CUDA graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from hotlap.engine.forks import CudaLanes, Lanes

Work = Callable[[], None]
_lanes: dict[torch.device, CudaLanes] = {}  # one per process: cuBLAS keeps memory for every stream it ran on


class Recorder(Protocol):
    def capture(self, work: Work) -> Work:
        """Capture the work without doing it; the function returned does it."""

    def finish(self) -> None:
        """Wait for the device."""

    def lanes(self) -> Lanes | None:
        """Return lanes for work that runs beside other work within a capture, or None."""


class CudaRecorder:
    """Captures on the stream the training runs on: autograd's nodes belong to the stream they were made on.

    All graphs share one pool. They are replayed one after the other, and none reads what another left in it:
    gradients and activations live within one replay, everything that lasts was allocated before.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        if self.device in _lanes:
            _lanes[self.device].used.clear()  # by a capture that failed
        with self._random_stream_restored():
            stream = torch.cuda.current_stream(self.device)
            # The outer context brings the stream back also where ending a failed capture raises. Only this thread is
            # watched: those that write checkpoints and read data may go on.
            with (
                torch.cuda.stream(stream),
                torch.cuda.graph(graph, pool=self.pool, stream=stream, capture_error_mode="thread_local"),
            ):
                work()
        return graph.replay  # keeps the graph and its memory

    @contextlib.contextmanager
    def _random_stream_restored(self) -> Iterator[None]:
        """Restore the random stream after a failed capture, which leaves it in a state where nothing can draw."""
        index = self.device.index if self.device.index is not None else torch.cuda.current_device()
        generator = torch.cuda.default_generators[index]
        before = generator.clone_state()
        try:
            yield
        except BaseException:
            generator.graphsafe_set_state(before)
            raise

    def finish(self) -> None:
        torch.cuda.synchronize(self.device)

    def lanes(self) -> Lanes | None:
        if self.device not in _lanes:
            _lanes[self.device] = CudaLanes(self.device)
        return _lanes[self.device]


def recorder_for(device: torch.device) -> Recorder | None:
    return CudaRecorder(device) if device.type == "cuda" else None


_streams: dict[torch.device, Any] = {}


@contextlib.contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Train on a stream of its own, as a capture needs; the user's stream waits for it at the end."""
    if device.type != "cuda":
        yield
        return
    here = torch.cuda.current_stream(device)
    # One for the whole process: memory that was freed on a stream is used again on that stream alone.
    stream = _streams.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
    stream.wait_stream(here)
    try:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            yield
    finally:
        here.wait_stream(stream)
