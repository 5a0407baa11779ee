"""Which GPUs the program sees, asked without starting CUDA."""

from __future__ import annotations

from typing import Any

NO_GPU = "no GPU that torch can use"


def gpus(torch: Any) -> int:
    """That the program may use, counted without starting CUDA: it may still choose among them, or fork.

    torch.cuda.is_available() would start the driver, which from then on ignores CUDA_VISIBLE_DEVICES.
    """
    return int(torch.cuda.device_count())


def gpu_name(torch: Any) -> str:
    """Of the first one, by NVML: torch would start CUDA to tell it."""
    try:
        import pynvml

        pynvml.nvmlInit()
        first = torch.cuda._parse_visible_devices()[0]
        by_number = isinstance(first, int)
        device = pynvml.nvmlDeviceGetHandleByIndex(first) if by_number else pynvml.nvmlDeviceGetHandleByUUID(first)
        return str(pynvml.nvmlDeviceGetName(device))
    except Exception:  # noqa: BLE001 no NVML, or a form of CUDA_VISIBLE_DEVICES it does not know
        return str(torch.cuda.get_device_name())
