"""Several processes that train one model: each computes a part of every batch, and their gradients are added up.

Weights, optimizer and schedule are the same in all of them, and so is whatever decides how the training continues: the
losses and scores of all rows, and what the first process says.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar, get_args

import torch
import torch.distributed as torch_distributed
from torch import Tensor

from hotlap.engine.errors import BadRecipe, EngineError

Distributed = Literal["ddp", "fsdp"]  # whole weights in every process, or a part of each
Found = TypeVar("Found")
BUCKET = 2**25  # elements that are sent at once


def started_together() -> int:
    """Return how many processes torchrun or another launcher started for this training."""
    if torch_distributed.is_available() and torch_distributed.is_initialized():
        return torch_distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


def require_alone() -> None:
    count = started_together()
    if count > 1:
        rank = os.environ.get("RANK", "0")
        raise BadRecipe(
            f"this is process {rank} of {count}, and each would train on all rows; "
            'use Trainer(…, distributed="ddp"), or start one process'
        )


def local_device(wanted: torch.device | str) -> torch.device | str:
    """Return this process's own GPU where the device is chosen automatically."""
    if str(wanted) in ("auto", "cuda") and torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    return wanted


def join(distributed: Distributed | None, device: torch.device) -> Processes | None:
    """Join the other processes; None where this one trains alone."""
    if distributed is None:
        return None
    if distributed not in get_args(Distributed):
        raise BadRecipe(f'distributed={distributed!r}; use "ddp", "fsdp" or None')
    if started_together() == 1:
        return None
    if not torch_distributed.is_initialized():
        _meet("nccl" if device.type == "cuda" else "gloo")
        atexit.register(_leave)
    rank, count = torch_distributed.get_rank(), torch_distributed.get_world_size()
    return Processes(rank, count, device, shards=distributed == "fsdp")


def _meet(backend: str) -> None:
    """Start the group. torchrun keeps one store over its restarts, in which the addresses of processes that died would
    be found: each attempt has names of its own there.
    """
    store, rank, count = next(torch_distributed.rendezvous("env://"))  # type: ignore[attr-defined]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = torch_distributed.PrefixStore(f"hotlap/{attempt}", store)  # type: ignore[attr-defined]
    torch_distributed.init_process_group(backend, store=own, rank=rank, world_size=count)


def _leave() -> None:
    if torch_distributed.is_initialized():
        torch_distributed.destroy_process_group()


class Processes:
    """With `shards`, weights are shared out, and all processes must compute equally often."""

    def __init__(self, rank: int, count: int, device: torch.device, shards: bool = False) -> None:
        self.rank, self.count, self.device, self.shards = rank, count, device, shards
        self._for_files: Any = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def from_first(self, work: Callable[[], Found]) -> Found:
        """Do the work in the first process alone and return its result in all, or raise its error in all."""
        box: list[Any] = [None, None]
        if self.is_first:
            try:
                box[0] = work()
            except EngineError as error:
                box[1] = error
        torch_distributed.broadcast_object_list(box, src=0, device=self.device)
        if box[1] is not None:
            raise box[1]
        found: Found = box[0]
        return found

    def for_files(self) -> Any:
        """Return a group of all processes on their hosts, for the threads that write checkpoints."""
        if self._for_files is None:
            self._for_files = torch_distributed.new_group(backend="gloo")
        return self._for_files

    def gathered(self, value: Found, group: Any = None) -> list[Found]:
        """Return what each process has."""
        values: list[Any] = [None] * self.count
        torch_distributed.all_gather_object(values, value, group=group)
        return values

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the first one's values."""
        with torch.no_grad():
            for tensor in tensors:
                value = _sendable(tensor).to(self.device).contiguous()
                torch_distributed.broadcast(value, src=0)
                _sendable(tensor).copy_(value)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one type by their sums over all processes."""
        if tensors:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            torch_distributed.all_reduce(flat)
            parts = torch.split(flat, [tensor.numel() for tensor in tensors])
            torch._foreach_copy_(list(tensors), [part.view_as(to) for part, to in zip(parts, tensors, strict=True)])

    def highest(self, number: int) -> int:
        """Return the highest of the numbers of all processes. HOST SYNC."""
        value = torch.tensor(number, device=self.device)
        torch_distributed.all_reduce(value, torch_distributed.ReduceOp.MAX)
        return int(value)


def _sendable(tensor: Tensor) -> Tensor:
    value = tensor.detach()
    if value.is_complex():
        return torch.view_as_real(value)
    return value.view(torch.uint8) if value.dtype is torch.bool else value


class GradientSum:
    """Adds up the gradients of all processes, once for each optimizer step, and their losses with them."""

    def __init__(self, processes: Processes, parameters: Sequence[Tensor]) -> None:
        self.processes, self.parameters = processes, parameters
        self.trained: list[Tensor] | None = None  # those that get a gradient in any process
        self.others: list[Tensor] = []

    def __call__(self, losses: Tensor) -> None:
        trained = self._agreed() if self.trained is None else self.trained
        if any(parameter.grad is not None for parameter in self.others):
            raise BadRecipe(
                "a weight that had no gradient in the first step has one now, which several processes cannot agree on; "
                "use all weights in the first step, or begin a Phase where more of them are trained"
            )
        gradients: list[Tensor] = [losses]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(_sendable(parameter.grad))
        for bucket in buckets(gradients):
            self.processes.add_up(bucket)

    def _agreed(self) -> list[Tensor]:
        """Agree on what is trained. HOST SYNC, once a phase."""
        if not self.parameters:
            self.trained = []
            return self.trained
        has = torch.tensor([parameter.grad is not None for parameter in self.parameters], device=self.processes.device)
        counts = has.int()
        torch_distributed.all_reduce(counts)
        pairs = list(zip(self.parameters, counts.tolist(), strict=True))
        self.trained = [parameter for parameter, count in pairs if count]
        self.others = [parameter for parameter, count in pairs if not count]
        return self.trained


def buckets(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group tensors by type, a bounded number of elements at a time, in the same way in every process."""
    closed: list[list[Tensor]] = []
    open_ones: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        bucket = open_ones.setdefault(tensor.dtype, [])
        bucket.append(tensor)
        if sum(part.numel() for part in bucket) >= BUCKET:
            closed.append(open_ones.pop(tensor.dtype))
    return closed + list(open_ones.values())
