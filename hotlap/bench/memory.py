"""Peak memory of an arm with all its processes, polled from outside."""

from __future__ import annotations

import sys
import threading
import time

from hotlap.observe.watch import nvml_devices
from hotlap.process import tree

MIB = 1 << 20
SHORTEST = 0.25  # least seconds between polls
MOST_OF_THE_TIME = 0.02  # reading PSS walks page tables: polling takes at most this share of one core
PSS, RSS = "PSS", "RSS"
HOST_MEMORY = PSS if sys.platform == "linux" else RSS


class Peaks:
    """Polls the memory of a process tree in a thread until the block ends."""

    def __init__(self, pid: int, gpus: Gpus) -> None:
        self._pid, self._gpus = pid, gpus
        self.host_mb: float | None = None
        self.device_mb: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hotlap-memory", daemon=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while True:
            began = time.perf_counter()
            self._poll()
            pause = max(SHORTEST, (time.perf_counter() - began) / MOST_OF_THE_TIME)
            if self._stop.wait(pause):
                return

    def _poll(self) -> None:
        host = tree.memory_mb(tree.family(self._pid))
        if host:
            self.host_mb = max(self.host_mb or 0.0, host)
        device = self._gpus.grown_mb()
        if device is not None:
            self.device_mb = max(self.device_mb or 0.0, device)


class Gpus:
    """How much more device memory all processes use than when this object was created."""

    def __init__(self) -> None:
        self._devices = nvml_devices()
        self._before = self._used()

    def grown_mb(self) -> float | None:
        """Return the growth of the device that grew most; None without NVML."""
        now = self._used()
        grown = [used - before for used, before in zip(now, self._before, strict=True)]
        return max([0, *grown]) / MIB if grown else None

    def _used(self) -> list[int]:
        if not self._devices:
            return []
        import pynvml

        try:
            return [int(pynvml.nvmlDeviceGetMemoryInfo(device).used) for device in self._devices]
        except pynvml.NVMLError:
            self._devices = []
            self._before = []
            return []
