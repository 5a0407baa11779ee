"""Kernels loaded and launched through the CUDA driver, called directly.

A thread has a current context only once the CUDA runtime has done some work in it; an autograd thread that first meets
one of our kernels has none. So every call here makes the primary context of its device current, the one that torch
uses, and leaves the thread as it was. On a machine with one GPU a kernel is launched first, and the context is looked
at only if that was refused, because querying it every time costs the host as much as the launch; a thread without one
then keeps torch's, as after any work of the CUDA runtime.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hotlap.kernels.cuda.nvrtc import NoCompiler

DEVICE = Path(__file__).parent / "device.cu"  # every kernel is compiled behind it
DYNAMIC_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
REPORTED = {"registers": 4, "local_bytes": 3}  # CU_FUNC_ATTRIBUTE_NUM_REGS, …_LOCAL_SIZE_BYTES
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (POINTER(c_int), c_void_p, c_int, c_size_t),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
}


_Parameters = c_char_p * 1  # where the bytes lie; it keeps them alive


@cache
def driver() -> Any:
    """Load the driver's library; raise NoCompiler if there is none."""
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
    """Return the context that torch uses on this device; it is held until the process ends."""
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


def adopt(device: int) -> None:
    """Make torch's context current for good in a thread that has none."""
    found = c_void_p()
    call("cuCtxGetCurrent", ctypes.byref(found))
    if not found.value:
        call("cuCtxSetCurrent", primary(device))


class Kernel:
    """Machine code loaded into one device's context; it stays loaded until the process ends."""

    def __init__(self, code: bytes, name: str, shared_bytes: int, device: int) -> None:
        self._shared, self._device, self._function = shared_bytes, device, c_void_p()
        self._launch, self._alone = driver().cuLaunchKernel, torch.cuda.device_count() == 1
        module = c_void_p()
        with current(device):
            call("cuModuleLoadData", ctypes.byref(module), code)
            call("cuModuleGetFunction", ctypes.byref(self._function), module, name.encode())
            call("cuFuncSetAttribute", self._function, DYNAMIC_SHARED_MEMORY, shared_bytes)

    def launch(self, blocks: int, threads: int, stream: int, given: bytes) -> None:
        """Launch with `given`, the kernel's only argument, copied at once. No synchronisation, no allocation."""
        parameters = _Parameters(given)
        shape = (blocks, 1, 1, threads, 1, 1, self._shared, stream, parameters, None)
        if self._alone:
            if self._launch(self._function, *shape) == 0:
                return
            adopt(self._device)
        with current(self._device):
            call("cuLaunchKernel", self._function, *shape)

    def resources(self, threads: int) -> dict[str, int]:
        """Return registers and local memory of a thread, shared memory of a block of `threads`, and how many blocks fit
        on a multiprocessor.
        """
        found, value = {"shared_bytes": self._shared}, c_int()
        with current(self._device):
            for name, number in REPORTED.items():
                call("cuFuncGetAttribute", ctypes.byref(value), number, self._function)
                found[name] = value.value
            call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                ctypes.byref(value),
                self._function,
                threads,
                self._shared,
            )
        return {**found, "blocks_at_once": value.value}


def stream_of(device: int) -> int:
    get: Any = torch._C._cuda_getCurrentRawStream
    stream: int = get(device)
    return stream
