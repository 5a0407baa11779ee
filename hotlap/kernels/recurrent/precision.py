"""Large products with or without TF32, whatever the program has set for its own."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

CUDA = torch.version.cuda is not None
_get: Any = getattr(torch._C, "_get_fp32_precision_getter", None)  # the newer setting, from torch 2.9
_set: Any = getattr(torch._C, "_set_fp32_precision_setter", None)


class products:  # noqa: N801 used like a function: with products(exact)
    """Lets float32 products inside use TF32, as cuDNN's do, unless exact; restores the program's setting afterwards.

    There is one setting for the whole process: another thread's product in between is rounded like ours. It is read and
    written without torch.backends, whose attributes cost the host as much as a product does.
    """

    __slots__ = ("_before", "_medium", "_newer", "_wanted")

    def __init__(self, exact: bool) -> None:
        self._wanted = not exact
        self._before: bool | None = None  # of the older setting, where it has to be put back
        self._newer: str | None = None
        self._medium = False

    def __enter__(self) -> None:
        if not CUDA:
            return
        try:
            before = torch._C._get_cublas_allow_tf32()
        except RuntimeError:  # the program uses the newer setting, and then reading the older one is an error
            self._by_the_newer()
            return
        if before == self._wanted:
            return
        self._before, self._newer = before, None if _get is None else _get("cuda", "matmul")
        self._medium = before and torch.get_float32_matmul_precision() == "medium"
        torch._C._set_cublas_allow_tf32(self._wanted)

    def _by_the_newer(self) -> None:
        wanted, found = "tf32" if self._wanted else "ieee", _get("cuda", "matmul")
        if found != wanted:
            self._newer = found
            _set("cuda", "matmul", wanted)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            torch._C._set_cublas_allow_tf32(self._before)
            if self._medium:
                torch.set_float32_matmul_precision("medium")
        if self._newer is not None:
            _set("cuda", "matmul", self._newer)


def cudnn_uses_tf32() -> bool:
    """Return whether cuDNN may round float32 products now; assumed if the program's settings contradict each other."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return True
