"""The seams on tensors: host-to-device copies and host syncs. They cost a call per use, so they open for a window only.

Plain functions, not wrapt objects: a tensor's methods are called far more often than anything else we stand around.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from sys import _getframe
from typing import Any

from hotlap.patch.dynamo import keep_out
from hotlap.patch.ledger import Ledger
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


def open_tensors(seams: Seams, on_cuda: bool) -> Ledger:
    """Open both tensor seams; closing the ledger that is returned closes them."""
    torch, ledger, functions = seams.torch, Ledger(), Ledger()
    method = _method_on_cuda if on_cuda else _method_on_host(_host_files(torch))
    for name, kind in SYNC_METHODS.items():
        ledger.wrap(torch.Tensor, name, method(seams.syncing, kind))
    for name in SYNC_FUNCTIONS:
        functions.wrap(torch, name, _function(seams.syncing, name))
    functions.wrap(torch.cuda, "synchronize", _synchronize(seams.syncing))
    if on_cuda:
        for name in COPY_METHODS:
            ledger.wrap(torch.Tensor, name, _copy(seams.copying, name))
    keep_out(ledger)
    keep_out(functions, for_good=True)
    ledger.later(functions.close)
    return ledger


def open_indexing(seams: Seams) -> Ledger:
    """Indexing by a mask syncs too, but indexing is too common to stand around while timing."""
    ledger = Ledger()
    ledger.wrap(seams.torch.Tensor, "__getitem__", _masked(seams.syncing, seams.torch))
    keep_out(ledger)
    return ledger


def _host_files(torch: Any) -> frozenset[str]:
    """Torch's own bookkeeping on host tensors, which stays on the host whatever the device of the model."""
    root = Path(torch.__file__).parent
    return frozenset(str(path) for room in ("optim", "utils/data") for path in (root / room).rglob("*.py"))


def _method_on_cuda(seam: Seam, kind: str) -> Callable[[Any], Any]:
    def layer(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.is_cuda:  # an optimizer reads its host-side step counts with item()
                return original(self, *args, **kwargs)
            seam.before(kind, self)
            result = None
            try:
                result = original(self, *args, **kwargs)
                return result
            finally:
                seam.after(kind, self, result)

        return call

    return layer


def _method_on_host(host_files: frozenset[str]) -> Callable[[Seam, str], Callable[[Any], Any]]:
    def method(seam: Seam, kind: str) -> Callable[[Any], Any]:
        def layer(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(self: Any, *args: Any, **kwargs: Any) -> Any:
                if _getframe(1).f_code.co_filename in host_files:
                    return original(self, *args, **kwargs)
                seam.before(kind, self)
                result = None
                try:
                    result = original(self, *args, **kwargs)
                    return result
                finally:
                    seam.after(kind, self, result)

            return call

        return layer

    return method


def _function(seam: Seam, kind: str) -> Callable[[Any], Any]:
    def layer(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            tensor = args[0] if args else kwargs.get("input")
            seam.before(kind, tensor)
            result = None
            try:
                result = original(*args, **kwargs)
                return result
            finally:
                seam.after(kind, tensor, result)

        return call

    return layer


def _synchronize(seam: Seam) -> Callable[[Any], Any]:
    def layer(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            seam.before("synchronize", None)
            try:
                return original(*args, **kwargs)
            finally:
                seam.after("synchronize", None, None)

        return synchronize

    return layer


def _masked(seam: Seam, torch: Any) -> Callable[[Any], Any]:
    """Indexing by a boolean mask must learn its count from the device."""
    tensor, boolean = torch.Tensor, torch.bool

    def layer(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __getitem__(self: Any, index: Any) -> Any:  # noqa: N807 it stands in for one
            if type(index) is not tensor or index.dtype is not boolean:
                return original(self, index)
            seam.before("mask", self)
            try:
                return original(self, index)
            finally:
                seam.after("mask", self, None)

        return __getitem__

    return layer


def _copy(seam: Seam, name: str) -> Callable[[Any], Any]:
    def layer(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            seam.before(name, self, args, kwargs)
            result = None
            try:
                result = original(self, *args, **kwargs)
                return result
            finally:
                seam.after(name, self, args, kwargs, result)

        return copy

    return layer
