"""Which precision a root gets, or why none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hotlap.catalog.autocast import hardware
from hotlap.catalog.autocast.hardware import BF16, FP16
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.rehearsal import hooked, parallel


def precision(torch: Any, root: Any, asked: str | None, optimizers: Iterable[Any]) -> str:
    device = _device(root)
    _check_weights(torch, root)
    recurrent = any(isinstance(one, torch.nn.RNNBase) for one in root.modules())
    older = device.type == "cuda" and not hardware.supports(torch, device, BF16)
    chosen = asked or (FP16 if older and not recurrent else BF16)
    if chosen == BF16 and recurrent:
        raise EntryDeclined("recurrent layers in bfloat16 were measured 7 to 13 times slower than in float32")
    if not hardware.supports(torch, device, chosen):
        raise EntryDeclined(f"this {_name(device)} has no {chosen} of its own and would be slower by far")
    if chosen == FP16:
        _check_scalable(torch, root, optimizers)
    return chosen


def _name(device: Any) -> str:
    return {"cpu": "processor", "cuda": "GPU"}.get(device.type, str(device))


def _device(root: Any) -> Any:
    devices = {one.device for one in root.parameters()}
    if len(devices) != 1:
        raise EntryDeclined(f"the model lies on {len(devices)} devices")
    return devices.pop()


def _check_weights(torch: Any, root: Any) -> None:
    kinds = {one.dtype for one in root.parameters() if one.is_floating_point()}
    if kinds != {torch.float32}:
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise EntryDeclined(f"the model's weights are {names}, not float32")


def _check_scalable(torch: Any, root: Any, optimizers: Iterable[Any]) -> None:
    """Between backward and its end gradients are scaled: nobody else may look at them then."""
    if hooked(torch, root):
        raise EntryDeclined("hooks in the model would see scaled gradients")
    if parallel(root) not in (None, "DistributedDataParallel"):
        raise EntryDeclined(f"gradients inside {parallel(root)} cannot be scaled from outside")
    if any(getattr(one, "sparse", False) for one in root.modules()):
        raise EntryDeclined("sparse gradients cannot be scaled")
    if any(type(one).__name__ == "LBFGS" for one in optimizers):
        raise EntryDeclined("LBFGS computes gradients several times a step")
