"""Return batches whose tensors are already on the device, copied there on a stream of their own."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from hotlap.loading.samples import Layout, take_apart
from hotlap.patch.signals import comes_from_outside
from hotlap.runtime.site import Site

if TYPE_CHECKING:
    from hotlap.catalog.resident_data.device_leaves import DeviceLeaves

IDLE = 4  # batches in a row that needed no copy, after which the rest of the epoch runs unchanged


def apply(site: Site) -> None:
    prefetching = PrefetchIterator(site, CudaCopies(site.torch))
    site.after(site.seams.iterating, prefetching.iterated)
    site.ledger.later(prefetching.leave)


class PrefetchIterator:
    def __init__(self, site: Site, copies: Any) -> None:
        self._site, self._copies = site, copies
        self._home = os.getpid()
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._learned: weakref.WeakKeyDictionary[Any, DeviceLeaves] = weakref.WeakKeyDictionary()

    def iterated(self, loader: Any, args: Any, kwargs: Any, iterator: Any) -> None:
        """Patch the iterator: it is never saved and ends with its epoch, and so does the attribute set on it here."""
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        if not isinstance(iterator, _BaseDataLoaderIter) or os.getpid() != self._home:
            return
        if loader not in self._learned:
            self._learned[loader] = self._copies.learning()
        iterator._next_data = Ahead(  # type: ignore[method-assign]
            self._site, self._copies, loader, iterator, self._learned[loader]
        )
        self._iterators.add(iterator)

    def leave(self) -> None:
        """Unpatch the iterators; one with a batch fetched ahead returns that first."""
        for iterator in list(self._iterators):
            ahead = vars(iterator).get("_next_data")
            if isinstance(ahead, Ahead) and not ahead.waiting:
                del iterator._next_data


class Ahead:
    """Stands in for an iterator's _next_data. It holds the iterator weakly, so that dropping it ends its workers."""

    def __init__(self, site: Site, copies: Any, loader: Any, iterator: Any, learning: DeviceLeaves) -> None:
        self._site, self._copies, self._learning = site, copies, learning
        self._name = type(loader.dataset).__name__
        self._iterator = weakref.ref(iterator)
        # Without workers a batch fetched earlier would draw its random numbers earlier.
        self._looks_ahead = bool(getattr(iterator, "_workers", None)) and loader._auto_collation
        self._next: FetchedBatch | None = None
        self._idle = 0

    @property
    def waiting(self) -> bool:
        return self._next is not None

    def __call__(self) -> Any:
        current, self._next = self._next, None
        if current is not None and current.error is None:
            self._usual_index()
        if self._site.closed:
            return self._usual() if current is None else current.given(self._copies)
        if current is None:
            current = self._fetched()
        if self._idle >= IDLE:
            self._leave()
        elif self._looks_ahead and self._learning.devices and current.error is None:
            self._next = self._fetched_early()
        return current.given(self._copies)

    def _leave(self) -> None:
        """Unpatch the iterator, for which no batch is waiting."""
        vars(self._iterator()).pop("_next_data", None)

    def _usual(self) -> Any:
        iterator: Any = self._iterator()
        return type(iterator)._next_data(iterator)

    def _usual_index(self) -> None:
        """Ask the sampler for the next batch for the workers, as torch does when it returns a batch."""
        iterator: Any = self._iterator()
        type(iterator)._try_put_index(iterator)

    def _fetched_early(self) -> FetchedBatch:
        """Fetch without asking the sampler, which the program may change until it requests this batch."""
        iterator: Any = self._iterator()
        iterator._try_put_index = _nothing
        try:
            return self._fetched()
        finally:
            vars(iterator).pop("_try_put_index", None)

    def _fetched(self) -> FetchedBatch:
        """Fetch a batch. The loader's errors, and its end, are raised when that batch is requested."""
        try:
            batch = self._usual()
        except Exception as error:  # noqa: BLE001 raised again in its turn
            return FetchedBatch(None, error=error.with_traceback(None))  # its frames hold the iterator
        try:
            return self._sent(batch)
        except Exception as error:
            if self._site.seams.guard.strict or comes_from_outside(error):
                raise
            self._site.withdraw(f"it failed ({type(error).__name__}: {error}) and was undone")
            return FetchedBatch(batch)

    def _sent(self, batch: Any) -> FetchedBatch:
        layout, leaves = take_apart(self._site.torch, batch, None)
        if not self._learning.settled:
            return FetchedBatch(self._watched(batch, layout, leaves))
        devices = {leaf: device for leaf, device in self._learning.devices.items() if leaf < len(leaves)}
        leaves, event = self._copies.send(leaves, devices)
        self._idle = self._idle + 1 if event is None else 0
        return FetchedBatch(layout.build(iter(leaves)), event, leaves) if event is not None else FetchedBatch(batch)

    def _watched(self, batch: Any, layout: Layout, leaves: list[Any]) -> Any:
        tensor = self._site.torch.Tensor
        if not any(type(leaf) is tensor for leaf in leaves):
            return batch  # resident-data is watching its own
        if self._learning.asked():
            self._tell(len(leaves))
            return batch
        return layout.build(iter(self._learning.watch(leaves)))

    def _tell(self, leaves: int) -> None:
        if not self._learning.devices:
            self._site.no_effect(
                f"{self._name}: the loop does more with each tensor of a batch than copy it to the device"
            )
            return
        ahead = "a batch ahead" if self._looks_ahead else "as soon as they are fetched"
        moved = len(self._learning.devices)
        self._site.applied(f"{self._name}: {moved} of {leaves} parts of a batch, copied {ahead}")


def _nothing() -> None:
    """Stand in for asking the sampler."""


class FetchedBatch:
    def __init__(self, batch: Any, event: Any = None, leaves: Any = (), error: Exception | None = None) -> None:
        self.batch, self.event, self.leaves, self.error = batch, event, leaves, error

    def given(self, copies: Any) -> Any:
        if self.error is not None:
            raise self.error
        if self.event is not None:
            copies.receive(self.leaves, self.event)
        return self.batch


class CudaCopies:
    """Copies on one stream per device. Nothing here waits on the host."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._streams: dict[Any, Any] = {}

    def learning(self) -> DeviceLeaves:
        from hotlap.catalog.resident_data.device_leaves import DeviceLeaves

        return DeviceLeaves()

    def send(self, leaves: list[Any], devices: dict[int, Any]) -> tuple[list[Any], Any]:
        """Copy leaves from the host to their devices. The event marks their arrival; None means nothing was copied."""
        going = [leaf for leaf in devices if self._goes(leaves[leaf])]
        if not going:
            return leaves, None
        cuda, device = self._torch.cuda, devices[going[0]]
        if device not in self._streams:
            self._streams[device] = cuda.Stream(device)
        stream, sent = self._streams[device], list(leaves)
        with cuda.stream(stream):
            for leaf in going:
                host = leaves[leaf]
                pinned = host if host.is_pinned() else host.pin_memory()
                sent[leaf] = pinned.to(devices[leaf], non_blocking=True)  # the pinned block outlives the copy
        return sent, stream.record_event()

    def _goes(self, leaf: Any) -> bool:
        return type(leaf) is self._torch.Tensor and leaf.device.type == "cpu"

    def receive(self, leaves: list[Any], event: Any) -> None:
        """Make the current stream wait for the copies, whose memory is not reused before it is done with them."""
        for leaf in leaves:
            if isinstance(leaf, self._torch.Tensor) and leaf.is_cuda:
                current = self._torch.cuda.current_stream(leaf.device)
                current.wait_event(event)
                leaf.record_stream(current)
