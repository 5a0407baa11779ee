"""Samples CPU, memory and GPU load of the command's processes from outside, about once a second."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from hotlap.records.observation import GpuLoad, ProcessLoad

INTERVAL = 1.0
MIB = 1 << 20


@dataclass
class _Process:
    name: str
    handle: psutil.Process
    cpu: list[float] = field(default_factory=list)
    peak: float = 0.0


class Watch:
    """Samples until stopped; only samples taken while measuring count."""

    def __init__(self, pid: int) -> None:
        self._root = pid
        self._processes: dict[int, _Process] = {}
        self._gpus: dict[int, list[tuple[float, float, float | None]]] = {}
        self._gpu_names: dict[int, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hotlap-watch", daemon=True)
        self.measuring = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        gpus = nvml_devices()
        while not self._stop.wait(INTERVAL):
            with suppress(psutil.Error):
                self._sample_processes()
            if self.measuring and gpus:
                self._sample_gpus(gpus)

    def _sample_processes(self) -> None:
        root = psutil.Process(self._root)
        for handle in [root, *root.children(recursive=True)]:
            with suppress(psutil.Error):
                self._sample(handle)

    def _sample(self, handle: psutil.Process) -> None:
        known = self._processes.get(handle.pid)
        if known is None:
            known = self._processes[handle.pid] = _Process(_name(handle, self._root), handle)
            known.handle.cpu_percent()  # the first reading only starts its clock
            return
        percent = known.handle.cpu_percent()
        if self.measuring:
            known.cpu.append(percent)
        known.peak = max(known.peak, known.handle.memory_info().rss / MIB)

    def _sample_gpus(self, devices: list[Any]) -> None:
        import pynvml

        for index, device in enumerate(devices):
            with suppress(pynvml.NVMLError):
                power = None
                with suppress(pynvml.NVMLError):
                    power = pynvml.nvmlDeviceGetPowerUsage(device) / 1000
                load = float(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)
                used = pynvml.nvmlDeviceGetMemoryInfo(device).used / MIB
                self._gpus.setdefault(index, []).append((load, used, power))
                self._gpu_names[index] = str(pynvml.nvmlDeviceGetName(device))

    def processes(self) -> tuple[ProcessLoad, ...]:
        rows = [
            ProcessLoad(
                pid=pid,
                name=process.name,
                cpu_percent=sum(process.cpu) / len(process.cpu),
                peak_memory_mb=process.peak,
            )
            for pid, process in self._processes.items()
            if process.cpu
        ]
        return tuple(sorted(rows, key=lambda row: -row.cpu_percent))

    def gpus(self) -> tuple[GpuLoad, ...]:
        rows = []
        for index, samples in sorted(self._gpus.items()):
            powers = [power for _, _, power in samples if power is not None]
            rows.append(
                GpuLoad(
                    index=index,
                    name=self._gpu_names[index],
                    utilization_percent=sum(load for load, _, _ in samples) / len(samples),
                    memory_used_mb=max(used for _, used, _ in samples),
                    power_watts=sum(powers) / len(powers) if powers else None,
                )
            )
        return tuple(rows)


def _name(handle: psutil.Process, root: int) -> str:
    command = handle.cmdline()
    if any("multiprocessing" in word for word in command) or _is_fork_of_parent(handle, command):
        return "loader worker or other child"
    if handle.pid == root:
        return "main"
    rank = handle.environ().get("RANK")
    return f"rank {rank}" if rank else handle.name()


def _is_fork_of_parent(handle: psutil.Process, command: list[str]) -> bool:
    parent = handle.parent()
    return parent is not None and bool(command) and parent.cmdline() == command


def nvml_devices() -> list[Any]:
    """Return the GPUs that NVML sees; none without a driver or NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except ImportError:
        return []
    except pynvml.NVMLError:
        return []
