"""The memory of tensors and arrays as bytes, and checksums of it."""

from __future__ import annotations

import _thread
import ctypes
import os
import threading
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hotlap.machine import cores_of_a_rank

WORD = 8
LONG = 4 << 10  # bytes; zlib is faster on less
PIECE = 1 << 20  # bytes per checksum
PIECES_EACH = 64  # for each thread, at least
MOST_THREADS = 8  # more would wait for the memory
WRITABLE = 0x200  # PyBUF_WRITE

# Not an array type of ctypes: there would be one for each size, and a type is a cycle that the program's gc.collect()
# would find and count.
_memory_view = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)


def bytes_of(array: Any) -> memoryview:
    """Return the bytes of a host tensor or NumPy array, without a copy if it is contiguous."""
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


def is_contiguous(array: Any) -> bool:
    if hasattr(array, "is_contiguous"):
        return bool(array.is_contiguous()) and not array.is_conj() and not array.is_neg()
    return bool(getattr(getattr(array, "flags", None), "c_contiguous", False))  # a table's flags are another type


def on_host(array: Any) -> bool:
    return getattr(getattr(array, "device", None), "type", "cpu") == "cpu"


def _at(address: int, size: int) -> memoryview:
    """Return this memory, which the caller must keep alive. After tensor.numpy(), torch would refuse to resize it."""
    return _memory_view(address, size, WRITABLE) if size else memoryview(b"")


def _byte() -> Any:
    import torch

    return torch.uint8


def checksum(piece: Any, begun: int = 0) -> int:
    """Return the checksum of a piece: the sum of its words times secret odd numbers.

    A single changed word always shows, and swapped words almost certainly do. At 4 GB/s it is twice as fast as zlib's.
    """
    words = len(piece) // WORD
    if len(piece) < LONG or len(piece) > PIECE:
        return zlib.crc32(piece, begun)
    import numpy

    products = _products()
    numpy.multiply(numpy.frombuffer(piece, numpy.uint64, words), factors()[:words], out=products[:words])
    return zlib.crc32(piece[words * WORD :], begun) ^ int(numpy.add.reduce(products[:words]))


def checksums(pieces: Sequence[Any], whole: Any) -> list[int]:
    """Return the checksum of each piece of `whole`, computed on several cores if there is much of it."""
    threads = min(len(pieces) // PIECES_EACH, MOST_THREADS)
    threads = min(threads, cores_of_a_rank()) if threads > 1 else 1
    if threads < 2:
        return list(map(checksum, pieces))
    factors()
    sums: list[list[int]] = [[] for _ in range(threads)]
    locks = [_thread.allocate_lock() for _ in range(1, threads)]
    for number, lock in enumerate(locks, 1):
        lock.acquire()
        # The program's threading.enumerate() does not list it, and it keeps the memory alive if we are interrupted
        _thread.start_new_thread(_sum_share, (pieces[number::threads], sums[number], lock, whole))
    sums[0] += map(checksum, pieces[::threads])
    for lock in locks:
        lock.acquire()
    return [sums[number % threads][number // threads] for number in range(len(pieces))]


def _sum_share(pieces: Sequence[Any], sums: list[int], done: Any, whole: Any) -> None:
    try:
        sums += map(checksum, pieces)
    finally:
        done.release()


@lru_cache(maxsize=1)
def factors() -> Any:
    import numpy

    return numpy.frombuffer(os.urandom(PIECE), numpy.uint64) | numpy.uint64(1)


_of_thread = threading.local()


def piece_of_memory() -> Any:
    """Return this thread's scratch buffer, as bytes; the next caller overwrites it."""
    if not hasattr(_of_thread, "piece"):
        import numpy

        _of_thread.piece = numpy.empty(PIECE, numpy.uint8)
    return _of_thread.piece


def _products() -> Any:
    if not hasattr(_of_thread, "products"):
        import numpy

        _of_thread.products = numpy.empty(PIECE // WORD, numpy.uint64)
    return _of_thread.products
