"""The seams on tensors: host-to-device copies and host syncs. They cost a call per use, so they open only for a window.

A tensor's methods are called far more often than anything else we wrap, so calls that do not concern us pass through at
once. Most are written in C, and their warnings name the calling line, so the call is made from the program's line.
Tape entries carry the result of `seam.result(kind, frame, tensor, args, kwargs, outcome)`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from sys import _getframe
from threading import get_ident
from time import perf_counter_ns
from types import FrameType
from typing import Any

from hotlap.patch.dynamo import keep_out
from hotlap.patch.hidden_frames import Make, from_line, leave_no_frame
from hotlap.patch.ledger import Layer, Ledger
from hotlap.patch.seams import Seam, Seams

# Tensor method → the kind a user would recognise.
SYNC_METHODS = {
    "item": "item",
    "cpu": "cpu",
    "tolist": "tolist",
    "numpy": "numpy",
    "__array__": "numpy",
    "__float__": "float",
    "__int__": "int",
    "__bool__": "bool",
    "__index__": "index",
    "__repr__": "print",
    "__format__": "format",
    "nonzero": "nonzero",
    "masked_select": "masked_select",
    "unique": "unique",
    "equal": "equal",
    "allclose": "allclose",
}
SYNC_FUNCTIONS = ("nonzero", "masked_select", "unique", "equal", "allclose")
COPY_METHODS = ("to", "cuda", "copy_")
IN, OUT = "in", "out"  # host to device, device to host


def open_tensors(seams: Seams, on_cuda: bool) -> Ledger:
    """Open both tensor seams; closing the returned ledger closes them."""
    torch, ledger, functions = seams.torch, Ledger(), Ledger()
    method = _method_on_cuda if on_cuda else _method_on_host(_host_files(torch))
    is_item_of_torch = torch.Tensor.item is torch._C.TensorBase.item
    for name, kind in SYNC_METHODS.items():
        ledger.wrap(torch.Tensor, name, method(seams.syncing, kind))
    for name in SYNC_FUNCTIONS:
        functions.wrap(torch, name, _function(seams.syncing, name))
    functions.wrap(torch.cuda, "synchronize", _function(seams.syncing, "synchronize"))
    if on_cuda:
        for name in COPY_METHODS:
            ledger.wrap(torch.Tensor, name, _copy(seams, name))
    for module in list(sys.modules.values()) if is_item_of_torch else ():
        if getattr(module, "__name__", "").startswith("torch.optim.") and "_get_value" in vars(module):
            functions.wrap(module, "_get_value", _reading_host_counts(torch))
    keep_out(ledger)
    keep_out(functions, for_good=True)
    ledger.later(functions.close)
    return ledger


def _reading_host_counts(torch: Any) -> Layer:
    """Bypass our item() for an optimizer's host-side step counts: one call per parameter tensor would show.

    An item() that the program has put in place since is called as without us.
    """
    tensor, item, ours = torch.Tensor, torch._C.TensorBase.item, torch.Tensor.item

    def layer(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _get_value(value: Any) -> Any:
            try:
                is_bypassed = tensor.item is ours and type(value) is tensor and not value.is_cuda
                return item(value) if is_bypassed else original(value)
            except BaseException as error:
                leave_no_frame(error)
                raise

        return _get_value

    return layer


def open_indexing(seams: Seams) -> Ledger:
    """Open the seam on indexing: a mask syncs too, but indexing is too common to wrap while timing."""
    ledger = Ledger()
    ledger.wrap(seams.torch.Tensor, "__getitem__", _masked(seams.syncing, seams.torch))
    keep_out(ledger)
    return ledger


def _host_files(torch: Any) -> frozenset[str]:
    """Return torch's files that do bookkeeping on host tensors, whatever the device of the model."""
    root = Path(torch.__file__).parent
    return frozenset(str(path) for room in ("optim", "utils/data") for path in (root / room).rglob("*.py"))


def _through(seam: Seam, kind: str, frame: FrameType, tensor: Any, make: Make, args: Any, kwargs: Any) -> Any:
    """Make the call with the subscribers and the tape around it."""
    if seam.attended:
        seam.before(kind, tensor)
    tape = seam.tape
    if tape is not None:
        tape((seam.enter, perf_counter_ns(), get_ident(), None))
    outcome = None
    try:
        outcome = make(frame, args, kwargs)
        return outcome
    finally:
        if tape is not None:
            now = perf_counter_ns()
            try:
                note = seam.result(kind, frame, tensor, args, kwargs, outcome) if seam.result else None
                tape((seam.leave, now, get_ident(), note))
            except Exception as error:  # noqa: BLE001 whatever our own code raises
                seam.stop_writing(error)
        if seam.attended:
            seam.after(kind, tensor, outcome)


def _method_on_cuda(seam: Seam, kind: str) -> Layer:
    def layer(original: Callable[..., Any]) -> Callable[..., Any]:
        make = from_line(original)

        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if seam.brief or not self.is_cuda:  # an optimizer reads its host-side step counts with item()
                    return make(_getframe(1), (self, *args), kwargs)
                return _through(seam, kind, _getframe(1), self, make, (self, *args), kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise

        return call

    return layer


def _method_on_host(host_files: frozenset[str]) -> Callable[[Seam, str], Layer]:
    def method(seam: Seam, kind: str) -> Layer:
        def layer(original: Callable[..., Any]) -> Callable[..., Any]:
            make = from_line(original)

            @functools.wraps(original)
            def call(self: Any, *args: Any, **kwargs: Any) -> Any:
                try:
                    frame = _getframe(1)
                    if frame.f_code.co_filename in host_files:
                        return make(_getframe(1), (self, *args), kwargs)
                    return _through(seam, kind, frame, self, make, (self, *args), kwargs)
                except BaseException as error:
                    leave_no_frame(error)
                    raise

            return call

        return layer

    return method


def _function(seam: Seam, kind: str) -> Layer:
    def layer(original: Callable[..., Any]) -> Callable[..., Any]:
        make = from_line(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                if seam.brief:
                    return make(_getframe(1), args, kwargs)
                tensor = args[0] if args else kwargs.get("input")
                return _through(seam, kind, _getframe(1), tensor, make, args, kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise

        return call

    return layer


def _masked(seam: Seam, torch: Any) -> Layer:
    """Wrap indexing by a boolean mask, which must read its count from the device."""
    tensor, boolean = torch.Tensor, torch.bool

    def layer(original: Callable[..., Any]) -> Callable[..., Any]:
        make = from_line(original)

        @functools.wraps(original)
        def __getitem__(self: Any, index: Any) -> Any:  # noqa: N807 it replaces one
            try:
                if type(index) is not tensor or index.dtype is not boolean or not self.is_cuda:
                    return make(_getframe(1), (self, index), {})
                return _through(seam, "mask", _getframe(1), self, make, (self, index), {})
            except BaseException as error:
                leave_no_frame(error)
                raise

        return __getitem__

    return layer


def _copy(seams: Seams, name: str) -> Layer:
    def layer(original: Callable[..., Any]) -> Callable[..., Any]:
        make = from_line(original)

        @functools.wraps(original)
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                direction = None if seams.copying.brief else direction_of(name, self, args, kwargs)
                if direction is None:
                    return make(_getframe(1), (self, *args), kwargs)
                source = (args[0] if args else kwargs.get("src")) if name == "copy_" else self
                seam, kind = (seams.copying, name) if direction == IN else (seams.syncing, "cpu")
                return _through(seam, kind, _getframe(1), source, make, (self, *args), kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise

        return copy

    return layer


def direction_of(name: str, tensor: Any, args: Any, kwargs: Any) -> str | None:
    """Return which way Tensor.to, .cuda or .copy_ copies, or None if it stays on its side."""
    if name == "copy_":
        source = args[0] if args else kwargs.get("src")
        there, here = tensor.is_cuda, getattr(source, "is_cuda", None)
    else:
        there, here = _target_is_cuda(name, args, kwargs), tensor.is_cuda
    if there is None or here is None or there == here:
        return None
    return IN if there else OUT


def _target_is_cuda(name: str, args: Any, kwargs: Any) -> bool | None:
    if name == "cuda":
        return True
    target = args[0] if args else kwargs.get("device", kwargs.get("other"))
    if isinstance(target, str):
        return target.startswith("cuda")
    if isinstance(target, int):
        return True
    if hasattr(target, "is_cuda"):
        return bool(target.is_cuda)
    kind = getattr(target, "type", None)
    return kind == "cuda" if isinstance(kind, str) else None
