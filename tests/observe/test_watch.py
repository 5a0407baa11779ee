"""GPU load is read from NVML, here a scripted driver; without a driver nothing is reported and nothing fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from hotlap.observe import watch as module
from hotlap.observe.watch import Watch
from hotlap.records.observation import GpuLoad

MIB = 1 << 20


class NVMLError(Exception):
    pass


@dataclass
class Device:
    name: str
    load: Iterator[int]  # percent, one per reading
    used_mb: Iterator[int]
    watts: Iterator[float] | None = None  # None for a card that does not report its power
    lost: bool = False


@dataclass
class Driver(ModuleType):
    """The functions of pynvml that hotlap uses, with their real names and units."""

    devices: list[Device] = field(default_factory=list)
    broken: bool = False

    def __post_init__(self) -> None:
        super().__init__("pynvml")

    NVMLError = NVMLError

    def nvmlInit(self) -> None:
        if self.broken:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        return self.devices[index]

    def nvmlDeviceGetName(self, device: Device) -> str:
        return device.name

    def nvmlDeviceGetUtilizationRates(self, device: Device) -> SimpleNamespace:
        if device.lost:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(gpu=next(device.load), memory=0)

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> SimpleNamespace:
        return SimpleNamespace(total=80_000 * MIB, free=0, used=next(device.used_mb) * MIB)

    def nvmlDeviceGetPowerUsage(self, device: Device) -> int:
        if device.watts is None:
            raise NVMLError("Not Supported")
        return int(1000 * next(device.watts))


def watched(monkeypatch: pytest.MonkeyPatch, driver: Driver | None, seconds: int = 2, measuring: bool = True) -> Watch:
    """The watch of this process after so many samples. Without a driver pynvml cannot be imported."""
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    watch = Watch(psutil.Process().pid)
    watch.measuring = measuring
    answers = iter([False] * seconds + [True])
    monkeypatch.setattr(watch._stop, "wait", lambda timeout: next(answers))
    watch._run()
    return watch


def test_each_gpu_has_its_mean_load_its_peak_memory_and_its_mean_power(monkeypatch):
    busy = Device("H200", iter([90, 70]), iter([1000, 3000]), iter([500.0, 600.0]))
    idle = Device("T4", iter([0, 10]), iter([20, 10]))

    assert watched(monkeypatch, Driver(devices=[busy, idle])).gpus() == (
        GpuLoad(index=0, name="H200", utilization_percent=80.0, memory_used_mb=3000.0, power_watts=550.0),
        GpuLoad(index=1, name="T4", utilization_percent=5.0, memory_used_mb=20.0, power_watts=None),
    )


def test_only_samples_taken_while_measuring_count(monkeypatch):
    device = Device("H200", iter([]), iter([]))
    assert watched(monkeypatch, Driver(devices=[device]), measuring=False).gpus() == ()


def test_a_lost_gpu_is_left_out_and_the_other_is_reported(monkeypatch):
    lost = Device("H200", iter([]), iter([]), lost=True)
    other = Device("T4", iter([40, 60]), iter([5, 5]))
    assert [row.name for row in watched(monkeypatch, Driver(devices=[lost, other])).gpus()] == ["T4"]


@pytest.mark.parametrize("driver", [None, Driver(broken=True), Driver()], ids=["no pynvml", "no driver", "no GPU"])
def test_without_nvml_there_are_no_gpus_but_processes_are_still_watched(monkeypatch, driver):
    watch = watched(monkeypatch, driver)
    assert watch.gpus() == ()
    assert [row.name for row in watch.processes() if row.pid == psutil.Process().pid] != []


def test_the_scripted_driver_uses_the_names_of_the_real_one():
    real = pytest.importorskip("pynvml")
    used = [name for name in vars(Driver) if name.lower().startswith("nvml")]
    assert len(used) == 8
    assert [name for name in used if not hasattr(real, name)] == []


def test_a_watch_ends_when_it_is_stopped(constants):
    constants(module, INTERVAL=0.01)
    watch = Watch(psutil.Process().pid)
    watch.measuring = True
    watch.start()
    while not any(process.cpu for process in list(watch._processes.values())):
        assert watch._thread.is_alive()
    watch.stop()
    assert not watch._thread.is_alive()
