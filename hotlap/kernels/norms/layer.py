"""BatchNorm2d that stands in for torch.nn's, and may have the activation behind it built in."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from hotlap.kernels.cuda.nvrtc import NoCompiler
from hotlap.kernels.norms import launches
from hotlap.kernels.norms.launches import ACTIVATIONS, TYPES, Plan, Shape
from hotlap.kernels.norms.operation import OF_ACTIVATION, Statistics, normalised

log = logging.getLogger("hotlap.kernels")
OLDEST = (8, 0)  # compute capability: below it there is no bfloat16


class BatchNorm2d(nn.BatchNorm2d):
    """torch's layer followed by `activation`: none, relu or silu. Same parameters, same state_dict."""

    activates = 1  # of a layer made by fuse_norms: calls under way of the module in which the activation follows

    def __init__(self, num_features: int, *args: Any, activation: str = "none", **options: Any) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(f"unknown activation {activation!r}; use one of {', '.join(ACTIVATIONS)}")
        super().__init__(num_features, *args, **options)
        self.activation = activation

    @classmethod
    def of(cls, layer: nn.BatchNorm2d, activation: str = "none") -> BatchNorm2d:
        """Return a layer with the very parameters and buffers of `layer`."""
        made = cls(1, layer.eps, layer.momentum, activation=activation)
        vars(made).update(vars(layer), activation=activation)
        return made

    def extra_repr(self) -> str:
        own: Any = super().extra_repr
        return f"{own()}, activation={self.activation}"

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        activation = self.activation if self.activates else "none"
        plan = plan_for(self, input, activation)
        if plan is None:
            made: Tensor = OF_ACTIVATION[activation](super().forward(input))
            return made
        return by_kernels(plan, self, input)


class Behind(nn.Module):
    """The activation behind such a layer, where the layer has it built in."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.activation = activation
        self.passes = 0  # calls under way in which the layer has done it

    def extra_repr(self) -> str:
        return self.activation

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        made: Tensor = input if self.passes else OF_ACTIVATION[self.activation](input)
        return made


def by_kernels(plan: Plan, layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
    keeps, momentum = layer.track_running_stats, layer.momentum or 0.0
    buffers = (layer.running_mean, layer.running_var, layer.num_batches_tracked) if keeps else (None, None, None)
    return normalised(plan, x, layer.weight, layer.bias, Statistics(*buffers, momentum), layer.eps)


def plan_for(layer: nn.BatchNorm2d, x: Any, activation: str) -> Plan | None:
    """Return the plan of the kernels, or None if torch's own way is to be taken."""
    if type(x) is not Tensor or not x.is_cuda or not layer.training:
        return None
    if torch.is_inference_mode_enabled() or _is_read_by_torch():
        return None
    why = why_not(layer, x, activation)
    if why is not None:
        _say_once(why)
        return None
    shape = Shape(x.numel() // x.shape[1], x.shape[1], x.dtype, activation, x.get_device())
    if not _is_loaded(x.dtype, activation, shape.device):
        return None
    return launches.planned(shape)


def _is_read_by_torch() -> bool:
    """Return whether Dynamo, a tracer, functorch or forward derivatives are active: they do not see our kernels."""
    read: Any = torch._C
    traced = read._get_tracing_state() is not None or read._are_functorch_transforms_active()
    return bool(traced or torch.compiler.is_compiling() or forward_ad._current_level >= 0)


def why_not(layer: nn.BatchNorm2d, x: Tensor, activation: str) -> str | None:
    if x.dim() != 4 or not x.is_contiguous(memory_format=torch.channels_last):
        return "the inputs are not in channels-last"
    if x.dtype not in TYPES or x.shape[1] % launches.width(x.dtype) or x.data_ptr() % 16:
        return f"{x.shape[1]} channels of {x.dtype}, from this address, are not whole vectors of 16 bytes"
    if x.shape[1] != layer.num_features or x.numel() <= x.shape[1]:
        return "the inputs are not of the layer's shape, or a single row"  # torch says what is wrong with them
    if activation == "none" and x.dtype is not torch.bfloat16:
        return f"torch's own kernels are as fast for {x.dtype} without an activation"
    if layer.momentum is None:
        return "running statistics are means over all batches"
    tensors = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
    usual = all(tensor is None or _is_usual(tensor, torch.float32, x, layer.num_features) for tensor in tensors)
    tracked = layer.num_batches_tracked
    if not usual or not (tracked is None or _is_usual(tracked, torch.int64, x, 1)):
        return "weights or statistics are not plain tensors in float32 beside the inputs"
    return None


def _is_usual(tensor: Tensor, dtype: torch.dtype, x: Tensor, size: int) -> bool:
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.dtype is not dtype or tensor.device != x.device:
        return False
    return tensor.numel() == size and tensor.is_contiguous()


def _is_loaded(dtype: torch.dtype, activation: str, device: int) -> bool:
    """Return whether the kernels are loaded, and load them, but not while a graph is captured, which would fail."""
    if (dtype, activation, device) in _ready:
        return True
    if torch.cuda.is_current_stream_capturing():
        return False
    return load(dtype, activation, device)


def load(dtype: torch.dtype, activation: str, device: int) -> bool:
    """Load the kernels and return whether there are any; from then on they are used, also while a graph is captured."""
    why = _loading(dtype, activation, device)
    if why is not None:
        _say_once(why)
        return False
    _ready.add((dtype, activation, device))
    return True


_ready: set[tuple[torch.dtype, str, int]] = set()


@cache
def _loading(dtype: torch.dtype, activation: str, device: int) -> str | None:
    if torch.cuda.get_device_capability(device) < OLDEST:
        return "this GPU has no bfloat16"
    try:
        launches.load(dtype, activation, device)
    except (NoCompiler, RuntimeError) as error:
        return str(error)
    return None


@cache
def _say_once(why: str) -> None:
    log.debug("batch normalisation by torch: %s", why)
