"""Large products with TF32 or without, whatever the program has set for its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import torch


class products:  # noqa: N801 used like a function: with products(exact)
    """float32 products inside use TF32, as cuDNN's do, unless exact; the program's setting is put back afterwards.

    The setting is one for the whole process: another thread's product in between is rounded as ours.
    """

    def __init__(self, exact: bool) -> None:
        self._wanted = not exact
        self._undo: list[Callable[[], Any]] = []

    def __enter__(self) -> None:
        if not torch.cuda.is_available():
            return
        matmul = torch.backends.cuda.matmul
        newer = getattr(matmul, "fp32_precision", None)
        try:
            before = matmul.allow_tf32
        except RuntimeError:  # the program uses the newer setting, and then reading the older one is an error
            wanted = "tf32" if self._wanted else "ieee"
            if newer != wanted:
                self._undo.append(partial(setattr, matmul, "fp32_precision", newer))
                matmul.fp32_precision = wanted
            return
        if before != self._wanted:
            if newer is not None:
                self._undo.append(partial(setattr, matmul, "fp32_precision", newer))
            if torch.get_float32_matmul_precision() == "medium":
                self._undo.append(partial(torch.set_float32_matmul_precision, "medium"))
            self._undo.append(partial(setattr, matmul, "allow_tf32", before))
            matmul.allow_tf32 = self._wanted

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._undo:
            self._undo.pop()()
