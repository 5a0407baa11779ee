"""Reads the machine, versions, torch's settings and memory from inside the program."""

from __future__ import annotations

import os
import platform
import resource
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from hotlap.machine import usable_cores
from hotlap.records.observation import Machine, Memory, Settings

PACKAGES = (
    "numpy",
    "lightning",
    "pytorch-lightning",
    "accelerate",
    "transformers",
    "triton",
    "torchvision",
    "hotlap",
)
MIB = 1 << 20


def machine(torch: Any) -> Machine:
    cuda = torch.cuda.is_initialized()
    return Machine(
        cpu=cpu_name(),
        cores=usable_cores(),
        memory_mb=total_memory_mb(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        gpu=torch.cuda.get_device_name() if cuda else None,
        gpus=torch.cuda.device_count() if cuda else 0,
        python=platform.python_version(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        cudnn=str(torch.backends.cudnn.version()) if cuda and torch.backends.cudnn.is_available() else None,
        versions=_versions(),
    )


def cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.lower().startswith(("model name", "hardware", "cpu model")):
                return line.split(":", 1)[1].strip()
    return platform.machine() or "unknown"  # platform.processor() would start a process


def total_memory_mb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / MIB


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        if name.replace("-", "_") in sys.modules:
            with suppress(metadata.PackageNotFoundError):
                found[name] = metadata.version(name)
    return found


def memory(torch: Any) -> Memory:
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, in KiB elsewhere
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB
    cuda = torch.cuda.is_initialized()
    return Memory(
        peak_host_mb=peak,
        peak_device_mb=torch.cuda.max_memory_allocated() / MIB if cuda else None,
        reserved_device_mb=torch.cuda.max_memory_reserved() / MIB if cuda else None,
        total_host_mb=total_memory_mb(),
        total_device_mb=torch.cuda.get_device_properties().total_memory / MIB if cuda else None,
    )


def settings(torch: Any, autocast: str | None, grad_scaler: bool) -> Settings:
    return Settings(
        threads=torch.get_num_threads(),
        interop_threads=torch.get_num_interop_threads(),
        autocast=autocast or _accelerate_precision(),
        grad_scaler=grad_scaler,
        matmul_precision=_matmul_precision(torch),
        cudnn_tf32=_allows_tf32(torch),
        cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
        deterministic=bool(torch.are_deterministic_algorithms_enabled()),
        anomaly_mode=bool(torch.is_anomaly_enabled()),
    )


def _matmul_precision(torch: Any) -> str:
    """Return the precision of float32 products; the question is an error if the program set it for one backend."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return "highest" if torch.backends.cuda.matmul.fp32_precision in ("ieee", "none") else "high"


def _allows_tf32(torch: Any) -> bool:
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")


def autocast_now(torch: Any, device: str) -> str | None:
    """Return the active autocast dtype, if any."""
    kind = device.split(":")[0]
    if not torch.is_autocast_enabled(kind):
        return None
    return str(torch.get_autocast_dtype(kind)).removeprefix("torch.")


def _accelerate_precision() -> str | None:
    """Return Accelerate's precision; it enters autocast inside the model's forward, out of sight from outside."""
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    precision = getattr(state, "_shared_state", {}).get("_mixed_precision")
    return {"bf16": "bfloat16", "fp16": "float16"}.get(str(precision))
