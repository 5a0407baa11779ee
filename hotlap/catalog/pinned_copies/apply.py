"""Turns blocking copies of batch tensors to the device into asynchronous copies from pinned memory."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from hotlap.loading.samples import take_apart
from hotlap.patch.dynamo import keep_out
from hotlap.patch.tensors import IN, direction_of
from hotlap.runtime.site import Original, Site

RECENT = 4  # batches: frameworks fetch ahead


def apply(site: Site) -> None:
    copies = Copies(site)
    site.after(site.seams.fetching, copies.fetched)
    for name in ("to", "cuda"):
        # Unknown tensors are not touched: another entry may watch how they are read.
        site.replace(site.torch.Tensor, name, copies.in_place_of(name), concerns=copies.of_a_batch)
    keep_out(site.ledger)


class Copies:
    def __init__(self, site: Site) -> None:
        self._site, self._torch = site, site.torch
        self._recent: deque[dict[int, weakref.ref[Any]]] = deque(maxlen=RECENT)
        self._without = 0  # consecutive batches with nothing to pin: another entry puts them on the device

    def fetched(self, iterator: Any, args: Any, kwargs: Any, batch: Any) -> None:
        """Remember the tensors of a batch without marking them or keeping them alive."""
        if batch is None:
            return  # the end of an epoch
        if tensors := self._on_the_host(batch):
            self._recent.append({id(leaf): weakref.ref(leaf) for leaf in tensors})
            self._without = 0
        elif self._recent:
            self._without += 1
            if self._without >= RECENT:
                self._recent.clear()  # so that the program's copies are no longer checked

    def _on_the_host(self, batch: Any) -> list[Any]:
        """Return the host tensors of a batch; checking a flat list first costs a tenth of searching containers."""
        tensor = self._torch.Tensor
        if type(batch) not in (list, tuple) or not all([type(leaf) is tensor for leaf in batch]):  # noqa: C419 it is faster
            batch = take_apart(self._torch, batch, None)[1]
        return [leaf for leaf in batch if type(leaf) is tensor and leaf.is_cpu and not leaf.requires_grad]

    def in_place_of(self, name: str) -> Any:
        def instead(original: Original, tensor: Any, args: Any, kwargs: Any) -> Any:
            if not waits(name, tensor, args, kwargs) or tensor.is_pinned():
                return original(*args, **kwargs)
            self._site.applied("batches are copied to the device from pinned memory")
            # The pinned copy is separate: what the program writes into its tensor from now on does not reach it.
            pinned = tensor.pin_memory()
            return getattr(self._torch.Tensor, name)(pinned, *args, **{**kwargs, "non_blocking": True})

        return instead

    def of_a_batch(self, tensor: Any) -> bool:
        for batch in tuple(self._recent):  # a copy, since another thread may fetch meanwhile
            known = batch.get(id(tensor))
            if known is not None and known() is tensor:
                return True
        return False


def waits(name: str, tensor: Any, args: Any, kwargs: Any) -> bool:
    """Return whether this is a blocking copy from host to device in a form that can be made asynchronous."""
    if kwargs.get("non_blocking") or any(isinstance(argument, bool) for argument in args):
        return False
    return direction_of(name, tensor, args, kwargs) == IN
