"""Answer `loss.item()` from a copy that was queued before the backward pass began.

A read waits for everything queued on the device, including the backward pass and the optimizer's step, though the value
was ready before. Where a program reads its loss, a copy is queued ahead of the backward, and the read waits for that
copy alone. Terms of the loss are read on another stream, past the queue.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable
from sys import _getframe
from typing import Any

from hotlap.catalog.early_read.backward import Backward
from hotlap.catalog.early_read.reader import CudaReader, Reader
from hotlap.patch.dynamo import keep_out
from hotlap.patch.hidden_frames import from_line, leave_no_frame
from hotlap.patch.signals import comes_from_outside
from hotlap.runtime.site import Site

REMEMBERED = 4  # losses: a program with two optimizers reads both at the end of the step
CHECKED = 8  # first reads, each compared with the device's value …
EVERY = 500  # … and about one in this many after them
SELDOM = 2  # unread losses in a row after which the next is not copied ahead …
UNREAD = 64  # … and after which the queue is no longer marked, until a loss is read again
PARTS_UNREAD = 16  # losses in a row without a term read, after which terms are no longer looked for

Give = Callable[[Any], Any]


def apply(site: Site) -> None:
    Reads(site, CudaReader(site.torch)).begin()


class Reads:
    def __init__(self, site: Site, reader: Reader) -> None:
        self._site, self._torch, self._reader = site, site.torch, reader
        self._backwards: deque[Backward] = deque(maxlen=REMEMBERED)
        self._unread, self._parts_unread = SELDOM, 0  # losses in a row
        self._checked, self._random = 0, random.Random(0)
        self._is_reported = False

    def begin(self) -> None:
        site, tensor, base = self._site, self._torch.Tensor, self._torch._C.TensorBase
        site.no_effect("no loss was read after its backward")
        site.before(site.seams.backward, self._backward)
        for name, give in (("item", base.item), ("__float__", base.__float__), ("cpu", base.clone)):
            site.ledger.wrap(tensor, name, functools.partial(self._layer, give))
        keep_out(site.ledger)
        site.ledger.later(self._backwards.clear)

    # Ahead of each backward

    def _backward(self, loss: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._unread >= UNREAD or type(loss) is not self._torch.Tensor or loss.dim() or loss.grad_fn is None:
            return
        if not self._reader.may_mark(loss) or self._is_one_of_many():
            return
        if self._backwards:
            self._backwards[-1].nodes = []  # only the user keeps an older graph
        with_parts = self._parts_unread < PARTS_UNREAD
        self._parts_unread += with_parts
        self._backwards.append(Backward(self._reader, loss, self._unread < SELDOM, with_parts))
        self._unread += 1
        if self._unread == UNREAD:
            self._backwards.clear()

    def _is_one_of_many(self) -> bool:
        """Whether several processes train: they may write into a loss, which torch does not count as a change."""
        distributed = self._torch.distributed
        if not distributed.is_available() or not distributed.is_initialized():
            return False
        self._site.withdraw("several processes train: a loss may be reduced in place after its backward")
        return True

    # Reads

    def _layer(self, give: Give, original: Callable[..., Any]) -> Callable[..., Any]:
        is_here, make = self._reader.is_here, from_line(original)

        @functools.wraps(original)
        def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                ours = None if args or kwargs or not is_here(tensor) else self._tried(tensor, give)
                if ours is None:
                    return make(_getframe(1), (tensor, *args), kwargs)
                if self._checked < CHECKED or self._random.random() * EVERY < 1:
                    return self._compared(make(_getframe(1), (tensor,), {}), ours)
                return ours
            except BaseException as error:
                leave_no_frame(error)
                raise

        return read

    def _tried(self, tensor: Any, give: Give) -> Any:
        try:
            host = self._found(tensor, give)
            return None if host is None else give(host)
        except Exception as error:
            if self._site.seams.guard.strict or comes_from_outside(error):
                raise
            self._site.withdraw(f"it failed ({type(error).__name__}: {error}) and was undone")
            return None

    def _found(self, tensor: Any, give: Give) -> Any:
        """Return the value on the host, or None if it must be read as usual."""
        if type(tensor) is not self._torch.Tensor or tensor.dim() or self._site.closed or tensor.is_inference():
            return None
        if give is self._torch._C.TensorBase.clone and tensor.requires_grad and self._torch.is_grad_enabled():
            return None  # the copy must be differentiable
        for backward in reversed(self._backwards):
            if backward.is_of(tensor) and backward.is_here(self._reader):
                self._unread = 0
                return self._of_loss(backward, tensor)
            if backward.has_part(tensor) and backward.is_here(self._reader):
                self._unread, self._parts_unread = min(self._unread, SELDOM), 0
                return self._reported(self._reader.aside(tensor, backward.mark))
        if tensor.grad_fn is not None:
            self._unread = min(self._unread, SELDOM)  # perhaps a loss that was not marked
        return None

    def _of_loss(self, backward: Backward, tensor: Any) -> Any:
        if backward.slot is None:
            return self._reported(self._reader.aside(tensor, backward.mark))
        self._reader.wait(backward.mark)  # host sync up to the copy
        return self._reported(backward.slot)

    def _reported(self, host: Any) -> Any:
        if not self._is_reported:
            self._is_reported = True
            self._site.applied("losses are read while their backward runs")
        return host

    def _compared(self, usual: Any, ours: Any) -> Any:
        """Compare both ways of reading, at first and now and then: code that writes into a loss unseen by torch mostly
        does so from the start. The program gets the usual value.
        """
        self._checked += 1
        same = self._torch.equal(usual, ours) if isinstance(usual, self._torch.Tensor) else usual == ours
        if not same and not (usual != usual and ours != ours):  # not a number
            off = self._site.withdraw if self._checked <= CHECKED else self._site.differs
            off("a loss is changed after its backward in a way that torch does not track")
        return usual
