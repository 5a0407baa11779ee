"""kernels.cu compiled for the CPU by the C++ compiler and run thread by thread: the very source that a GPU gets."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from hotlap.engine.nn import cuda_walk
from hotlap.engine.nn.geometry import Layout

HERE = Path(__file__).parent
COMPILER = os.environ.get("CXX", "g++")


@cache
def library(found: Layout) -> ctypes.CDLL:
    """Compiled once and kept for the next run, by content."""
    defines = found.defines
    texts = (HERE / "emulator.cpp").read_bytes(), cuda_walk.SOURCE.read_bytes(), " ".join(defines).encode()
    name = hashlib.sha256(b"\0".join(texts)).hexdigest()[:24]
    path = Path(tempfile.gettempdir()) / f"hotlap-emulated-{os.getuid()}" / f"{name}.so"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        built = path.with_suffix(f".{os.getpid()}")
        includes = f"-I{cuda_walk.SOURCE.parent}"
        flags = ("-O0", "-shared", "-fPIC", "-std=c++17", "-w")
        subprocess.run([COMPILER, *flags, includes, *defines, str(HERE / "emulator.cpp"), "-o", str(built)], check=True)
        built.replace(path)
    return ctypes.CDLL(str(path))


def launch(variant, walk, backward, round_to_tf32=False):
    """As cuda_walk.launch, on the CPU."""
    found = cuda_walk.needed(variant, walk, backward)
    clusters = found.clusters(walk.batch)
    parts = walk.gates.new_full((clusters if backward else 0, 4 * walk.hidden), float("nan"))
    given, alive = cuda_walk.arguments(walk, parts if backward else None)
    assert all(one.dtype.itemsize == 4 for one in alive)
    library(found).run(ctypes.byref(given), clusters, found.shared_bytes // 4, int(round_to_tf32))
    return parts
