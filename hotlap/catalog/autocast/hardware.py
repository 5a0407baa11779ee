"""Whether a device computes in half precision natively. A CPU that must emulate it is a hundred times slower."""

from __future__ import annotations

import platform
from typing import Any

BF16, FP16 = "bf16", "fp16"
FIRST_BF16 = (8, 0)  # compute capability

# Torch's own names of processor capabilities; before 2.10 they could be queried one by one only.
ON_X86 = {BF16: ("avx512_bf16", "amx_bf16"), FP16: ("avx512_fp16", "amx_fp16")}
ONE_BY_ONE = {BF16: ("_is_avx512_bf16_supported", "_is_amx_tile_supported"), FP16: ("_is_amx_fp16_supported",)}


def supports(torch: Any, device: Any, precision: str) -> bool:
    if device.type == "cuda":
        return precision == FP16 or torch.cuda.get_device_capability(device) >= FIRST_BF16
    return device.type == "cpu" and _processor_supports(torch, precision)


def _processor_supports(torch: Any, precision: str) -> bool:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        # On ARM float16 is emulated in matrix products even where the processor has it.
        return precision == BF16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if hasattr(torch.cpu, "get_capabilities"):
        can = torch.cpu.get_capabilities()
        return any(can.get(name, False) for name in ON_X86[precision])
    return any(getattr(torch.cpu, name, bool)() for name in ONE_BY_ONE[precision])
