"""Capturing work on the device once and replaying it: the only file that uses torch's CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

from hotlap.patch.silenced_warnings import unwarned

PROTOTYPE = "Synchronization debug mode is a prototype feature"
Work = Callable[[], Any]


class Recording(NamedTuple):
    outcome: Any  # tensors that each replay overwrites
    replay: Callable[[], None]
    forget: Callable[[], None]


class Recorder(Protocol):
    device_type: str

    def here(self, work: Work) -> Any:
        """Do the work without capturing it. An attempt to wait for the device is an error."""

    def waiting(self) -> AbstractContextManager[None]:
        """Allow to wait for the device, within `here`."""

    def aside(self, work: Work) -> Any:
        """Do the work without capturing it, on the stream that will capture it."""

    def record(self, work: Work) -> Recording:
        """Capture the work without doing it."""

    def new_pool(self) -> Any:
        """Return a memory pool for captures of which only one is in use at a time."""

    def record_both(
        self, forward: Work, backward: Callable[[Any], Any], pool: Any = None
    ) -> tuple[Recording, Recording]:
        """Capture forward() and backward(its outcome), always replayed in this order.

        Without a pool each has its own, so that gradients still hold what backward left when forward is replayed again:
        in a shared one they may lie where forward had its temporaries. In a given pool, nothing outlives the pair.
        """

    def random_state(self) -> Any: ...

    def set_random_state(self, state: Any) -> None: ...


class CudaRecorder:
    device_type = "cuda"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._stream: Any = None

    @property
    def _own_stream(self) -> Any:
        """The one stream of all captures: a backward runs on its forward's stream, which must be the capturing one."""
        if self._stream is None:
            self._stream = self._torch.cuda.Stream()
        return self._stream

    def here(self, work: Work) -> Any:
        with self._in_debug_mode("error"):
            return work()

    def waiting(self) -> AbstractContextManager[None]:
        return self._in_debug_mode("default")

    @contextmanager
    def _in_debug_mode(self, mode: str) -> Iterator[None]:
        before = self._torch.cuda.get_sync_debug_mode()
        self._set_debug_mode(mode)
        try:
            yield
        finally:
            self._set_debug_mode(before)

    def aside(self, work: Work) -> Any:
        """Do the work on the capture stream: libraries set themselves up per stream."""
        cuda = self._torch.cuda
        stream, here = self._own_stream, cuda.current_stream()
        stream.wait_stream(here)
        try:
            with cuda.stream(stream):
                return work()
        finally:
            here.wait_stream(stream)

    def _set_debug_mode(self, mode: Any) -> None:
        with unwarned(self._torch, PROTOTYPE):
            self._torch.cuda.set_sync_debug_mode(mode)

    def new_pool(self) -> Any:
        return self._torch.cuda.graph_pool_handle()

    def record(self, work: Work) -> Recording:
        return self._captured(work, self.new_pool())

    def record_both(
        self, forward: Work, backward: Callable[[Any], Any], pool: Any = None
    ) -> tuple[Recording, Recording]:
        first = self._captured(forward, pool or self.new_pool())
        return first, self._captured(lambda: backward(first.outcome), pool or self.new_pool())

    def _captured(self, work: Work, pool: Any) -> Recording:
        graph = self._torch.cuda.CUDAGraph()
        with self._capturing(graph, pool):
            outcome = work()
        return Recording(outcome, graph.replay, graph.reset)

    @contextmanager
    def _capturing(self, graph: Any, pool: Any) -> Iterator[None]:
        """Capture this thread alone: a loader's thread pins memory, which a capture of all threads would forbid.

        The outer stream context restores the user's stream even if ending a failed capture raises. A failed capture
        leaves the random generator in capture mode, in which nothing else can draw, so its old state is restored.
        """
        cuda, stream = self._torch.cuda, self._own_stream
        generator = cuda.default_generators[cuda.current_device()]
        before = generator.clone_state()
        try:
            with cuda.stream(stream), cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                yield
        except BaseException:
            generator.graphsafe_set_state(before)
            raise

    def random_state(self) -> Any:
        return self._torch.cuda.get_rng_state()

    def set_random_state(self, state: Any) -> None:
        self._torch.cuda.set_rng_state(state)
