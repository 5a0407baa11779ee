"""Adam and AdamW in one launch, and the norm that gradients are clipped by in one more.

torch's fused kernel gives 65536 elements to each block: for a model with a million weights it uses a tenth of the chip.
The numbers are Adam's in float32, the same whether a step is captured or not; the state is torch's own, so checkpoints
are those of torch's optimizer.
"""

from __future__ import annotations

import logging
import math
import struct
from functools import cache
from inspect import unwrap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from hotlap.kernels.cuda.driver import DEVICE, Kernel, stream_of
from hotlap.kernels.cuda.nvrtc import NoCompiler, architecture, compiled

HERE = Path(__file__).parent
FILES = (DEVICE, HERE / "adam.cu")
THREADS, TENSORS = 256, 64  # of a block; of a launch, whose arguments have 4096 bytes
CHUNK, CHUNKS = 4 * THREADS, 4096  # elements of a round; more chunks than this are larger ones
PARTS = 256  # blocks that add up squares
SHARED_BYTES = 4 * THREADS // 32
pack = struct.Struct(f"{6 * TENSORS}Q3Q{TENSORS}i6i10f").pack
log = logging.getLogger("hotlap.kernels")


def defines(squares: bool) -> tuple[str, ...]:
    """Return the compiler's defines; the last are device.cu's."""
    own = (f"-DTHREADS={THREADS}", f"-DTENSORS={TENSORS}", f"-DSQUARES={int(squares)}")
    return *own, "-DCLUSTER=1", "-DBLOCKS=1", "-DEXACT=1"


def source() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in FILES)


@cache
def kernel(squares: bool, device: int) -> Any:
    """Return the kernel; raise NoCompiler if it cannot be compiled."""
    code = compiled(source(), defines(squares), architecture(device))
    return Kernel(code, "adam_squares" if squares else "adam_step", SHARED_BYTES, device)


def one_launch(optimizer: Optimizer, clip: float | None, device: torch.device) -> OneLaunch | None:
    """Return the one-launch step, or None if torch's own step is to be used."""
    if device.type != "cuda" or not _is_plain(optimizer):
        return None
    try:
        return OneLaunch(optimizer, clip, device)
    except (NoCompiler, RuntimeError) as error:
        _say_once(str(error))
        return None


def _is_plain(optimizer: Any) -> bool:
    """Return whether this is torch's Adam, and nobody changes what this very optimizer does."""
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    if type(optimizer) not in (Adam, AdamW) or any(hooks) or "step" in vars(optimizer):
        return False
    return all(map(_is_usual, optimizer.param_groups))


def _is_usual(group: dict[str, Any]) -> bool:
    numbers = all(isinstance(number, int | float) for number in (*group["betas"], group["eps"], group["weight_decay"]))
    return numbers and not (group["amsgrad"] or group["maximize"] or group["differentiable"])


@cache
def _say_once(why: str) -> None:
    log.warning("Adam's own kernel cannot be used, so torch's is: %s", why)


class OneLaunch:
    """A step of the optimizer in one launch. Tensors beyond TENSORS, and other groups, take launches of their own."""

    def __init__(self, optimizer: Optimizer, clip: float | None, device: torch.device) -> None:
        self.optimizer, self.clip = optimizer, clip
        launches = sum(-(-len(group["params"]) // TENSORS) for group in optimizer.param_groups)
        self.squares = torch.zeros(launches * PARTS, device=device)
        self.tickets = torch.zeros(launches, dtype=torch.int32, device=device)
        self.index = self.squares.get_device()
        self.kernels = {squares: kernel(squares, self.index) for squares in (False, True)}

    def step(self) -> bool:
        """Do the step; do nothing and return False if a tensor is not as the kernel needs it or has no state yet."""
        is_watched = bool(_global_optimizer_pre_hooks or _global_optimizer_post_hooks)
        if not _is_plain(self.optimizer) or (is_watched and self.clip is not None):  # hooks come after the clipping
            return False
        launches = self._launches()
        if launches is None:
            return False
        if is_watched:
            Optimizer.profile_hook_step(lambda _: self._watched())(self.optimizer)
        else:
            self._launch(launches)
        return True

    def _watched(self) -> None:
        """Do the step within the hooks of all optimizers, which may have changed the gradients."""
        launches = self._launches()
        if launches is not None:
            self._launch(launches)
            return
        with torch.no_grad():
            unwrap(type(self.optimizer).step)(self.optimizer)

    def _launch(self, launches: list[Launch]) -> None:
        stream = stream_of(self.index)
        for squares in (False,) if self.clip is None else (True, False):
            begin, parts = 0, sum(min(PARTS, launch.chunks) for launch in launches)
            for number, launch in enumerate(launches):
                blocks = min(PARTS, launch.chunks) if squares else launch.chunks
                given = launch.packed(self._shared(number), blocks, begin, parts, self.clip or 0.0)
                self.kernels[squares].launch(blocks, THREADS, stream, given)
                begin += blocks
        torch.autograd.graph.increment_version([parameter for launch in launches for parameter in launch.parameters])

    def _shared(self, number: int) -> tuple[int, int]:
        squares = 0 if self.clip is None else self.squares.data_ptr()
        return squares, self.tickets.data_ptr() + 4 * number

    def _launches(self) -> list[Launch] | None:
        found = []
        for group in self.optimizer.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            states = [self.optimizer.state.get(parameter, {}) for parameter in trained]
            if not all(self._fits(parameter, state) for parameter, state in zip(trained, states, strict=True)):
                return None
            decoupled = isinstance(self.optimizer, AdamW) or group.get("decoupled_weight_decay", False)
            for first in range(0, len(trained), TENSORS):
                span = slice(first, first + TENSORS)
                found.append(Launch(trained[span], states[span], group, decoupled))
        return found if len(found) <= len(self.tickets) else None

    def _fits(self, parameter: Any, state: dict[str, Any]) -> bool:
        if not state or parameter.numel() == 0:
            return False
        alike = (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])
        here = (*alike, state["step"])
        if any(tensor.layout is not torch.strided or tensor.dtype is not torch.float32 for tensor in here):
            return False
        if any(tensor.device != self.tickets.device for tensor in here):
            return False
        return _is_dense(parameter) and all(tensor.stride() == parameter.stride() for tensor in alike)


def _is_dense(tensor: Tensor) -> bool:
    """Return whether memory is dense in any order in which torch's layers lay weights out."""
    if tensor.is_contiguous():
        return True
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return layout is not None and tensor.is_contiguous(memory_format=layout)


class Launch:
    """The arguments of a launch for some tensors of a group."""

    def __init__(
        self, parameters: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any], decoupled: bool
    ) -> None:
        sizes = [parameter.numel() for parameter in parameters]
        self.rounds = -(-sum(sizes) // (CHUNK * CHUNKS))
        self.ends, self.chunks = [], 0
        for size in sizes:
            self.chunks += -(-size // (CHUNK * self.rounds))
            self.ends.append(self.chunks)
        columns = (
            [parameter.data_ptr() for parameter in parameters],
            [parameter.grad.data_ptr() for parameter in parameters if parameter.grad is not None],
            *([state[name].data_ptr() for state in states] for name in ("exp_avg", "exp_avg_sq", "step")),
            sizes,
        )
        self.columns = [number for column in columns for number in _padded(column)]
        self.parameters, self.tensors, self.decoupled = parameters, len(parameters), decoupled
        rate, is_read = group["lr"], _is_beside(group["lr"], parameters[0])
        self.rate = rate.data_ptr() if is_read else 0
        self.numbers = 0.0 if is_read else float(rate), *_of_means(*group["betas"])
        self.tail = group["eps"], group["weight_decay"]

    def packed(self, shared: tuple[int, int], blocks: int, begin: int, parts: int, most: float) -> bytes:
        counts = (self.tensors, self.rounds, blocks, begin, parts, int(self.decoupled))
        return pack(
            *self.columns, self.rate, *shared, *_padded(self.ends), *counts, *self.numbers, *self.tail, most
        )  # fmt: skip


def _is_beside(rate: float | Tensor, parameter: Tensor) -> bool:
    """Return whether the kernel can read the rate."""
    return isinstance(rate, Tensor) and rate.device == parameter.device and rate.dtype is torch.float32


def _padded(column: list[int]) -> list[int]:
    return column + [0] * (TENSORS - len(column))


def _of_means(first: float, second: float) -> tuple[float, ...]:
    logs = (math.log(beta) if beta > 0 else -math.inf for beta in (first, second))
    return *logs, first, second, 1.0 - first, 1.0 - second
