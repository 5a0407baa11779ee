"""Kernels loaded and launched through the CUDA driver, called directly.

A thread has a current context only once the CUDA runtime did some work in it; a thread of autograd's that first meets
one of our kernels has none. So every call here makes the primary context of its device current, the one that torch
uses, and leaves the thread as it was.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_int, c_uint, c_void_p
from functools import cache
from typing import Any

from hotlap.engine.nn.nvrtc import NoCompiler

DYNAMIC_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, POINTER(c_void_p), POINTER(c_void_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
}


@cache
def driver() -> Any:
    """The driver's library. Raises NoCompiler."""
    if not sys.platform.startswith("linux"):
        raise NoCompiler("CUDA kernels are launched on Linux only")
    try:
        library = ctypes.CDLL("libcuda.so.1")
        for name, types in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, c_int
    except (OSError, AttributeError) as error:
        raise NoCompiler(f"the CUDA driver cannot be loaded: {error}") from None
    return library


def call(name: str, *given: Any) -> None:
    result = getattr(driver(), name)(*given)
    if result == 0:
        return
    text = c_char_p()
    driver().cuGetErrorString(result, ctypes.byref(text))
    raise RuntimeError(f"CUDA error {result} in {name}: {(text.value or b'unknown').decode()}")


@cache
def primary(device: int) -> int | None:
    """The context that torch uses on this device; held until the process ends."""
    number, context = c_int(), c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(number), device)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    return context.value


@contextmanager
def current(device: int) -> Iterator[None]:
    wanted, found = primary(device), c_void_p()
    call("cuCtxGetCurrent", ctypes.byref(found))
    if found.value == wanted:
        yield
        return
    call("cuCtxPushCurrent_v2", wanted)
    try:
        yield
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(found))


class Kernel:
    """Machine code loaded into one device's context; it stays loaded until the process ends."""

    def __init__(self, code: bytes, name: str, shared_bytes: int, device: int) -> None:
        self._shared, self._device, self._function = shared_bytes, device, c_void_p()
        module = c_void_p()
        with current(device):
            call("cuModuleLoadData", ctypes.byref(module), code)
            call("cuModuleGetFunction", ctypes.byref(self._function), module, name.encode())
            call("cuFuncSetAttribute", self._function, DYNAMIC_SHARED_MEMORY, shared_bytes)

    def launch(self, blocks: int, threads: int, stream: int, given: ctypes.Structure) -> None:
        """The structure is copied at once. No synchronisation, no allocation."""
        parameters = (c_void_p * 1)(ctypes.addressof(given))
        shape = (blocks, 1, 1, threads, 1, 1)
        with current(self._device):
            call("cuLaunchKernel", self._function, *shape, self._shared, stream, parameters, None)
