"""Several processes that train one model: each computes a part of every batch, and their gradients are added up.

Weights, optimizer and schedule are the same in all of them, and so is whatever decides how the training continues: the
losses and scores of all rows, and what the first process says.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

import torch
import torch.distributed as torch_distributed
from torch import Tensor

from hotlap.engine.errors import BadRecipe, EngineError, NoDevice, OtherProcessFailed

Distributed = Literal["ddp", "fsdp"]  # whole weights in every process, or a part of each
Found = TypeVar("Found")


def started_together() -> int:
    """Return how many processes torchrun or another launcher started for this training."""
    if torch_distributed.is_available() and torch_distributed.is_initialized():
        return torch_distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


def require_alone() -> None:
    count = started_together()
    if count > 1:
        raise BadRecipe(
            f"{count} processes were started together, and each would train on all rows; "
            'use Trainer(…, distributed="ddp"), or start one process'
        )


def rank_here() -> int:
    """Return the number of this process among those that train together."""
    together = torch_distributed.is_available() and torch_distributed.is_initialized()
    return torch_distributed.get_rank() if together else 0


def local_device(wanted: torch.device | str) -> torch.device | str:
    """Return this process's own GPU where the device is chosen automatically."""
    if str(wanted) in ("auto", "cuda") and torch.cuda.is_available():
        number, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if number >= count:
            started = os.environ.get("LOCAL_WORLD_SIZE", "several")
            raise NoDevice(
                f"{started} processes were started on a machine with {count} GPUs, and each needs its own; use "
                f'torchrun --nproc-per-node {count}, or device="cpu"'
            )
        device = torch.device("cuda", number)
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
        failed: Exception | None = None
        if self.is_first:
            try:
                box[0] = work()
            except Exception as error:  # noqa: BLE001 - the others wait for an answer
                failed = error
                box[1] = error if isinstance(error, EngineError) else _told(f"process 0 failed: {_line(error)}")
        torch_distributed.broadcast_object_list(box, src=0, device=self.device)
        if box[1] is not None:
            raise failed or box[1]
        found: Found = box[0]
        return found

    def alike(self, work: Callable[[], tuple[Found, Mapping[str, object]]]) -> Found:
        """Do the work in every process and return its result. It also says what must be alike in all of them; where
        that differs, or the work fails in one, all raise.
        """
        failed: Exception | None = None
        found: Found | None = None
        facts: Mapping[str, object] = {}
        try:
            found, facts = work()
        except Exception as error:  # noqa: BLE001 - the others wait for an answer
            failed = error
        why = None if failed is None else f"process {self.rank} failed: {_line(failed)}"
        answers = self.gathered((why, dict(facts)))
        if failed is not None:
            raise failed
        for why, _ in answers:
            if why is not None:
                raise _told(why)
        first = answers[0][1]
        for rank, (_, others) in enumerate(answers):
            for name, value in others.items():
                if value != first.get(name):
                    raise BadRecipe(
                        f"process {rank} has {name} {value}, but the first one {first.get(name)}; give every process "
                        "the same data and settings: each computes its share of every batch"
                    )
        return found  # type: ignore[return-value]

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
                value = sendable(tensor).to(self.device).contiguous()
                torch_distributed.broadcast(value, src=0)
                sendable(tensor).copy_(value)

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


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def _told(why: str) -> OtherProcessFailed:
    """Return the error of a process that failed, for the others, which need not print it again."""
    made = OtherProcessFailed(why)
    made.is_told = True
    return made


def sendable(tensor: Tensor) -> Tensor:
    value = tensor.detach()
    if value.is_complex():
        return torch.view_as_real(value)
    return value.view(torch.uint8) if value.dtype is torch.bool else value
