"""Recording work on the device once and replaying it: the only place that knows CUDA's graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

Work = Callable[[], Any]


class Recording(NamedTuple):
    outcome: Any  # tensors that each replay writes anew
    replay: Callable[[], None]
    forget: Callable[[], None]


class Recorder(Protocol):
    device_type: str

    def aside(self, work: Work, may_wait: bool) -> Any:
        """The work done without recording. Where it may not wait for the device, an attempt to is an error."""

    def record(self, work: Work) -> Recording:
        """The work recorded, not done."""

    def record_both(self, forward: Work, backward: Callable[[Any], Any]) -> tuple[Recording, Recording]:
        """forward() and backward(its outcome), always replayed in this order, in the same memory."""

    def random_state(self) -> Any: ...

    def set_random_state(self, state: Any) -> None: ...


class CudaRecorder:
    device_type = "cuda"

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def aside(self, work: Work, may_wait: bool) -> Any:
        """On a stream of its own, as a capture will be: libraries set themselves up per stream."""
        cuda = self._torch.cuda
        stream, here = cuda.Stream(), cuda.current_stream()
        stream.wait_stream(here)
        before = cuda.get_sync_debug_mode()
        self._set_debug_mode(before if may_wait else "error")
        try:
            with cuda.stream(stream):
                return work()
        finally:
            self._set_debug_mode(before)
            here.wait_stream(stream)

    def _set_debug_mode(self, mode: Any) -> None:
        with warnings.catch_warnings():  # it warns that it is a prototype, which is not the user's concern
            warnings.simplefilter("ignore")
            self._torch.cuda.set_sync_debug_mode(mode)

    def record(self, work: Work) -> Recording:
        return self._captured(work, self._torch.cuda.graph_pool_handle())

    def record_both(self, forward: Work, backward: Callable[[Any], Any]) -> tuple[Recording, Recording]:
        pool = self._torch.cuda.graph_pool_handle()
        first = self._captured(forward, pool)
        return first, self._captured(lambda: backward(first.outcome), pool)

    def _captured(self, work: Work, pool: Any) -> Recording:
        graph = self._torch.cuda.CUDAGraph()
        with self._capturing(graph, pool):
            outcome = work()
        return Recording(outcome, graph.replay, graph.reset)

    @contextmanager
    def _capturing(self, graph: Any, pool: Any) -> Iterator[None]:
        """Other threads go on: a loader's thread pins memory, which a capture of all threads would forbid.

        The outer stream context restores the user's stream also where ending a failed capture raises.
        """
        cuda = self._torch.cuda
        stream = cuda.Stream()
        with cuda.stream(stream), cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            yield

    def random_state(self) -> Any:
        return self._torch.cuda.get_rng_state()

    def set_random_state(self, state: Any) -> None:
        self._torch.cuda.set_rng_state(state)
