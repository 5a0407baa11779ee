"""Prints as JSON what an interpreter and its torch can do. Run by that interpreter as a script, it needs no package."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2]


def interpreter() -> dict[str, Any]:
    found: dict[str, Any] = {"python": platform.python_version(), "executable": sys.executable}
    try:
        import torch
    except Exception as error:  # noqa: BLE001 a broken installation raises whatever it likes
        return {**found, "error": f"{type(error).__name__}: {error}"}
    return {
        **found,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "threads": torch.get_num_threads(),
        "triton": find_spec("triton") is not None,
        "compiler": os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++"),
        **gpus(torch),
    }


def gpus(torch: Any) -> dict[str, Any]:
    try:
        count = torch.cuda.device_count()
        if not count:
            return {"gpus": [], "bf16": has_bf16(torch)}
        return {
            "gpus": [torch.cuda.get_device_name(i) for i in range(count)],
            "capabilities": [torch.cuda.get_device_capability(i) for i in range(count)],
            "architectures": torch.cuda.get_arch_list(),
        }
    except Exception as error:  # noqa: BLE001 a driver that does not fit raises whatever it likes
        return {"gpus": [], "gpu_error": f"{type(error).__name__}: {error}"}


def has_bf16(torch: Any) -> bool | None:
    """Return whether the processor computes in bf16; None where that cannot be asked."""
    sys.path.append(str(PACKAGE.parent))
    with suppress(Exception):
        from hotlap.catalog.autocast.hardware import BF16, supports

        return supports(torch, torch.device("cpu"), BF16)
    return None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(interpreter()))
