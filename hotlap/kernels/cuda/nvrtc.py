"""CUDA C++ compiled at run time by NVRTC, called directly.

Compiled kernels are cached on disk, by the content of everything they came from.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from hotlap.kernels.cuda.folder import cache_folder, written

_locks: defaultdict[Path, Lock] = defaultdict(Lock)


class NoCompiler(RuntimeError):
    """CUDA C++ cannot be compiled here; the message says why."""


def architecture(device: int) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def compiled(source: str, defines: tuple[str, ...], target: str) -> bytes:
    """Return machine code for this target; raise NoCompiler if it cannot be compiled."""
    options = (f"--gpu-architecture={target}", "--std=c++17", *defines)
    nvrtc = library()
    version = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(version[0]), ctypes.byref(version[1]))
    parts = (source, *options, str(version[0].value), str(version[1].value))
    path = cache_folder() / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.cubin"
    with _locks[path]:  # another thread may be compiling it
        code = _cached(path)
        if code is None:
            code = _compile(nvrtc, source, options)
            written(path, hashlib.sha256(code).digest() + code)
    return code


def _cached(path: Path) -> bytes | None:
    """Return the cached code; None if there is none or the file is torn."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:32], content[32:]
    return code if hashlib.sha256(code).digest() == digest else None


def _compile(nvrtc: Any, source: str, options: tuple[str, ...]) -> bytes:
    program = ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None))
    try:
        texts = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), texts) != 0:
            raise NoCompiler(f"NVRTC cannot compile a kernel: {_log(nvrtc, program)[-800:]}")
        size = ctypes.c_size_t()
        _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _log(nvrtc: Any, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, text)
    return text.value.decode(errors="replace")


def _check(result: int) -> None:
    if result != 0:
        raise NoCompiler(f"NVRTC failed with error {result}")


@cache
def library() -> Any:
    """Load the NVRTC that torch brings, or the system's; raise NoCompiler if there is neither."""
    for candidate in _candidates():
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    raise NoCompiler("libnvrtc was found neither beside torch nor on the library path")


def _candidates() -> Iterator[str]:
    major = (torch.version.cuda or "0").split(".")[0]
    yield f"libnvrtc.so.{major}"
    packages = Path(torch.__file__).resolve().parents[1]
    for pattern in (f"nvidia/*/lib/libnvrtc.so.{major}*", f"torch/lib/libnvrtc*.so.{major}*"):
        yield from (str(path) for path in sorted(packages.glob(pattern)))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield str(Path(os.environ[name]) / "lib64" / f"libnvrtc.so.{major}")
    yield "libnvrtc.so"
