"""The kernels of norm.cu: their arguments, and how many blocks of them fill a device."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotlap.kernels.cuda.driver import DEVICE, Kernel, stream_of
from hotlap.kernels.cuda.nvrtc import architecture, compiled

SOURCE = Path(__file__).parent / "norm.cu"
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
ACTIVATIONS = ("none", "relu", "silu")
NAMES = ("norm_moments", "norm_settle", "norm_apply", "norm_sums", "norm_settle_sums", "norm_inputs")
MOMENTS, SETTLE, APPLY, SUMS, SETTLE_SUMS, INPUTS = range(6)
THREADS, LANES, CHANNELS = 256, 32, 4  # as in norm.cu
SHARED_BYTES = THREADS // 2 * 8 * 12  # for half of the threads: eight times three numbers
AT_ONCE = 4
# Blocks a multiprocessor is given. Those that add up leave a part each, so no more than it has room for.
BLOCKS = {MOMENTS: 3, SUMS: 2, APPLY: 8, INPUTS: 8}
pack = struct.Struct("13Qq2i2f").pack  # struct Norm


@dataclass(frozen=True)
class Shape:
    rows: int
    channels: int
    dtype: torch.dtype
    activation: str
    device: int


def width(dtype: torch.dtype) -> int:
    """Return how many channels fit in 16 bytes."""
    return 4 if dtype is torch.float32 else 8


def defines(dtype: torch.dtype, activation: str) -> tuple[str, ...]:
    """Return the compiler's defines; the last are device.cu's."""
    own = (f"-DTHREADS={THREADS}", f"-DTYPE={TYPES[dtype]}", f"-DACTIVATION={ACTIVATIONS.index(activation)}")
    return *own, "-DCLUSTER=1", "-DBLOCKS=2", "-DEXACT=0"


@cache
def kernel(number: int, dtype: torch.dtype, activation: str, device: int) -> Any:
    """Return a kernel; raise NoCompiler if it cannot be compiled."""
    return Kernel(_binary(dtype, activation, device), NAMES[number], SHARED_BYTES, device)


@cache
def _binary(dtype: torch.dtype, activation: str, device: int) -> bytes:
    source = "".join(path.read_text(encoding="utf-8") for path in (DEVICE, SOURCE))
    return compiled(source, defines(dtype, activation), architecture(device))


def load(dtype: torch.dtype, activation: str, device: int) -> None:
    """Load all kernels, so that a graph can be captured with them; raise NoCompiler if they cannot be compiled."""
    for number in range(len(NAMES)):
        kernel(number, dtype, activation, device)


@cache
def multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


class Plan:
    """What is computed once per shape."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.kernels = [kernel(number, shape.dtype, shape.activation, shape.device) for number in range(len(NAMES))]
        vectors = shape.channels // width(shape.dtype)
        self.tiles = -(-vectors // LANES)
        rows = THREADS // min(vectors, LANES)  # of a block at a time
        most = -(-shape.rows // (AT_ONCE * rows))
        many = multiprocessors(shape.device)
        self.parts = {number: max(1, min(most, blocks * many // self.tiles)) for number, blocks in BLOCKS.items()}

    def launch(self, number: int, stream: int, row_parts: int, given: PassArguments) -> None:
        settles = number not in BLOCKS
        blocks = self.shape.channels // CHANNELS if settles else row_parts * self.tiles
        self.kernels[number].launch(blocks, THREADS, stream, given.packed(self.shape, row_parts))

    def forward(self, given: PassArguments) -> None:
        stream, parts = stream_of(self.shape.device), self.parts[MOMENTS]
        self.launch(MOMENTS, stream, parts, given)
        self.launch(SETTLE, stream, parts, given)
        self.launch(APPLY, stream, self.parts[APPLY], given)

    def backward(self, given: PassArguments) -> None:
        stream, parts = stream_of(self.shape.device), self.parts[SUMS]
        self.launch(SUMS, stream, parts, given)
        self.launch(SETTLE_SUMS, stream, parts, given)
        if given.dx is not None:
            self.launch(INPUTS, stream, self.parts[INPUTS], given)


@lru_cache(maxsize=4096)
def planned(shape: Shape) -> Plan:
    """Return the plan of a shape; raise NoCompiler if its kernels cannot be compiled."""
    return Plan(shape)


@dataclass
class PassArguments:
    """The arguments of the launches of one pass; None for what a pass does not have."""

    x: Tensor
    kept: Tensor
    parts: Tensor
    y: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    running_mean: Tensor | None = None
    running_var: Tensor | None = None
    tracked: Tensor | None = None
    g: Tensor | None = None
    dx: Tensor | None = None
    dweight: Tensor | None = None
    dbias: Tensor | None = None
    momentum: float = 0.0
    eps: float = 0.0

    def packed(self, shape: Shape, row_parts: int) -> bytes:
        tensors = (
            self.x, self.g, self.y, self.dx, self.weight, self.bias, self.running_mean, self.running_var,
            self.tracked, self.kept, self.parts, self.dweight, self.dbias,
        )  # fmt: skip
        addresses = (0 if tensor is None else tensor.data_ptr() for tensor in tensors)
        return pack(*addresses, shape.rows, shape.channels, row_parts, self.momentum, self.eps)
