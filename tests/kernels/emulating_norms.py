"""Runs the kernels of norm.cu on the CPU."""

from __future__ import annotations

import ctypes

from hotlap.kernels.norms import launches
from tests.kernels.recurrent import emulating


class Kernel:
    def __init__(self, number, dtype, activation, device):
        self.number = number
        self.library = emulating.compiled((launches.SOURCE,), launches.defines(dtype, activation))

    def launch(self, blocks, threads, stream, given):
        assert threads == launches.THREADS
        self.library.choose(self.number)
        self.library.run(ctypes.c_char_p(given), blocks, launches.SHARED_BYTES // 4, 0)


def on_cpu(monkeypatch):
    monkeypatch.setattr(launches, "kernel", Kernel)
    monkeypatch.setattr(launches, "stream_of", lambda device: 0)
    monkeypatch.setattr(launches, "multiprocessors", lambda device: 2)
    launches.planned.cache_clear()
