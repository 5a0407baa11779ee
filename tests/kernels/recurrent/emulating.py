"""Compiles the CUDA kernels' own source for the CPU with the C++ compiler, and runs it thread by thread."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from functools import cache, partial
from pathlib import Path

from hotlap.kernels.recurrent import cuda_recurrence, plans

HERE = Path(__file__).parent
COMPILER = os.environ.get("CXX", "g++")


@cache
def library(found: cuda_recurrence.Laid) -> ctypes.CDLL:
    return compiled(tuple(cuda_recurrence.HERE / name for name in cuda_recurrence.files(found)), found.defines)


@cache
def compiled(sources: tuple[Path, ...], defines: tuple[str, ...]) -> ctypes.CDLL:
    """Compile once per content; the library is stored for later runs."""
    paths = (HERE / "emulator.cpp", *sources, HERE / "emulated.cpp")
    entry = "".join(f'#include "{path}"\n' for path in paths)
    parts = (*(path.read_text() for path in paths), *defines)
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    path = Path(tempfile.gettempdir()) / f"hotlap-emulated-{os.getuid()}" / f"{name}.so"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        built = path.with_suffix(f".{os.getpid()}")
        flags = ("-O0", "-shared", "-fPIC", "-std=c++17", "-w", *defines)
        command = [COMPILER, *flags, "-x", "c++", "-", "-o", str(built)]
        subprocess.run(command, input=entry.encode(), check=True)
        built.replace(path)
    return ctypes.CDLL(str(path))


class Kernel:
    def __init__(self, found, device, round_to_tf32=False):
        self.found, self.rounded = found, round_to_tf32

    def launch(self, blocks, threads, stream, given):
        assert threads == self.found.threads
        cluster = self.found.variant.cluster if hasattr(self.found, "variant") else 1
        floats = self.found.shared_bytes // 4
        library(self.found).run(ctypes.c_char_p(given), blocks // cluster, floats, int(self.rounded))

    def resources(self, threads):
        assert threads == self.found.threads
        return {"shared_bytes": self.found.shared_bytes}


def on_cpu(monkeypatch, round_to_tf32=False):
    """Run all kernels of this test on the CPU."""
    monkeypatch.setattr(plans, "kernel", partial(Kernel, round_to_tf32=round_to_tf32))
    monkeypatch.setattr(plans, "stream_of", lambda device: 0)
    plans.planned.cache_clear()
