"""The memory of tensors and arrays as bytes, and checksums of it."""

from __future__ import annotations

import zlib
from typing import Any


def bytes_of(array: Any) -> memoryview:
    """Of a tensor on the host or a NumPy array; without a copy where it is contiguous."""
    if hasattr(array, "detach"):
        flat = array.detach()
        if array.is_conj() or array.is_neg():
            flat = flat.resolve_conj().resolve_neg()
        flat = flat.contiguous().reshape(-1)
        return memoryview(flat.view(_byte()).numpy())
    import numpy

    plain: Any = numpy.ascontiguousarray(array).reshape(-1)
    return memoryview(plain.view(numpy.uint8))


def _byte() -> Any:
    import torch

    return torch.uint8


def checksum(part: Any, begun: int = 0) -> int:
    return zlib.crc32(part, begun)
