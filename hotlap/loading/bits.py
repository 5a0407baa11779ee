"""The memory of tensors and arrays as bytes, and checksums of it."""

from __future__ import annotations

import ctypes
import os
import threading
import zlib
from functools import lru_cache
from typing import Any

WORD = 8
LONG = 4 << 10  # bytes: less is summed up sooner by zlib
PIECE = 1 << 20  # bytes of which the checksum is one number


def bytes_of(array: Any) -> memoryview:
    """Of a tensor on the host or a NumPy array; without a copy where it is contiguous."""
    if isinstance(array, bytearray):
        return memoryview(array)
    if hasattr(array, "detach"):
        if array.is_contiguous() and not array.is_conj() and not array.is_neg():
            return _at(array.data_ptr(), int(array.nbytes))
        flat = array.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return memoryview(flat.view(_byte()).numpy())
    import numpy

    plain: Any = numpy.ascontiguousarray(array).reshape(-1)
    return memoryview(plain.view(numpy.uint8))


def is_contiguous(thing: Any) -> bool:
    if hasattr(thing, "is_contiguous"):
        return bool(thing.is_contiguous()) and not thing.is_conj() and not thing.is_neg()
    return bool(getattr(getattr(thing, "flags", None), "c_contiguous", False))  # a table has flags of another kind


def on_host(thing: Any) -> bool:
    return getattr(getattr(thing, "device", None), "type", "cpu") == "cpu"


def _at(address: int, size: int) -> memoryview:
    """Not by tensor.numpy(), after which torch does not let the program resize its tensor. Whoever calls holds it."""
    import numpy

    if not size:
        return memoryview(b"")
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    whole: Any = numpy.frombuffer(memory, numpy.uint8)
    return memoryview(whole)


def _byte() -> Any:
    import torch

    return torch.uint8


def checksum(part: Any, begun: int = 0) -> int:
    """Of a piece: its words times odd numbers that nobody knows, so that a word that changed always shows, and two that
    changed places do but for bad luck. At 4 GB a second twice as fast as zlib's.
    """
    words = len(part) // WORD
    if len(part) < LONG or len(part) > PIECE:
        return zlib.crc32(part, begun)
    import numpy

    products = _products()
    numpy.multiply(numpy.frombuffer(part, numpy.uint64, words), factors()[:words], out=products[:words])
    return zlib.crc32(part[words * WORD :], begun) ^ int(numpy.add.reduce(products[:words]))


@lru_cache(maxsize=1)
def factors() -> Any:
    import numpy

    return numpy.frombuffer(os.urandom(PIECE), numpy.uint64) | numpy.uint64(1)


_of_thread = threading.local()


def piece_of_memory() -> Any:
    """Of this thread, as bytes; whoever asks next overwrites it."""
    if not hasattr(_of_thread, "piece"):
        import numpy

        _of_thread.piece = numpy.empty(PIECE, numpy.uint8)
    return _of_thread.piece


def _products() -> Any:
    if not hasattr(_of_thread, "products"):
        import numpy

        _of_thread.products = numpy.empty(PIECE // WORD, numpy.uint64)
    return _of_thread.products
