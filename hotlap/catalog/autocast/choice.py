"""Choose the precision of a root, or decline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hotlap.catalog.autocast import hardware
from hotlap.catalog.autocast.hardware import BF16, FP16
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.rehearsal import hooked, parallel


def precision(torch: Any, root: Any, requested: str | None, optimizers: Iterable[Any]) -> str:
    device = _device(root)
    _check_weights(torch, root)
    recurrent = any(isinstance(module, torch.nn.RNNBase) for module in root.modules())
    older = device.type == "cuda" and not hardware.supports(torch, device, BF16)
    chosen = requested or (FP16 if older and not recurrent else BF16)
    if chosen == BF16 and recurrent:
        raise EntryDeclined("recurrent layers in bfloat16 were measured 7 to 13 times slower than in float32")
    if not hardware.supports(torch, device, chosen):
        raise EntryDeclined(f"this {_name(device)} has no native {chosen} and would be far slower")
    if chosen == FP16:
        _check_scalable(torch, root, optimizers)
    return chosen


def _name(device: Any) -> str:
    return {"cpu": "processor", "cuda": "GPU"}.get(device.type, str(device))


def _device(root: Any) -> Any:
    devices = {parameter.device for parameter in root.parameters()}
    if len(devices) != 1:
        raise EntryDeclined(f"the model is spread over {len(devices)} devices")
    return devices.pop()


def _check_weights(torch: Any, root: Any) -> None:
    kinds = {parameter.dtype for parameter in root.parameters() if parameter.is_floating_point()}
    if kinds != {torch.float32}:
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise EntryDeclined(f"the model's weights are {names}, not float32")


def _check_scalable(torch: Any, root: Any, optimizers: Iterable[Any]) -> None:
    """Decline where other code could see gradients while backward runs, since they are scaled then."""
    if hooked(torch, root):
        raise EntryDeclined("hooks in the model would see scaled gradients")
    if parallel(root) not in (None, "DistributedDataParallel"):
        raise EntryDeclined(f"gradients inside {parallel(root)} cannot be scaled from outside")
    if any(getattr(module, "sparse", False) for module in root.modules()):
        raise EntryDeclined("sparse gradients cannot be scaled")
    if any(type(optimizer).__name__ == "LBFGS" for optimizer in optimizers):
        raise EntryDeclined("LBFGS computes gradients several times a step")
