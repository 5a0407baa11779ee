"""What several processes send each other in an optimizer step: gradients, losses, and what else must be alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as torch_distributed
from torch import Tensor, nn

from hotlap.engine.interrupts import Interrupts
from hotlap.engine.processes import Processes, sendable

BUCKET = 2**25  # elements that are sent at once


class GradientSum:
    """Adds up the gradients of all processes, once for each optimizer step, and their losses with them.

    The losses travel with a flag for each weight, whether it has a gradient, and one for a signal. On a CPU the flags
    are read after each step; on a GPU only where a weight had no gradient, since the host waits for the device then.
    A weight that no process used keeps no gradient, as in one process. Buffers that a step changes, such as running
    statistics, are those of the first process.
    """

    def __init__(
        self,
        processes: Processes,
        parameters: Sequence[Tensor],
        modules: Iterable[nn.Module],
        interrupts: Interrupts | None = None,
    ) -> None:
        self.processes, self.parameters, self.interrupts = processes, parameters, interrupts
        self.signalled = False  # a process was, in the last step; known on a CPU alone
        self.sent: list[int] | None = None  # the weights whose gradients travel with the losses
        self.buffers = [Buffer(module, name) for module in modules for name in module._buffers]
        self._before = [None if buffer.is_alike else buffer.value.clone() for buffer in self.buffers]
        self._flags: tuple[tuple[bool, ...], Tensor] | None = None

    def __call__(self, losses: Tensor) -> None:
        has = tuple(parameter.grad is not None for parameter in self.parameters)
        if self.sent is None:
            self._agree(has)
        assert self.sent is not None
        news = torch.cat([losses.reshape(-1), self._flags_of(has)])
        lacks = any(not has[number] for number in self.sent)
        self._add_up([news, *self._gradients(self.sent)])
        losses.copy_(news[: losses.numel()].view_as(losses))
        if lacks or losses.device.type == "cpu" or len(self.sent) < len(has):
            self._read(news[losses.numel() :])

    def _flags_of(self, has: tuple[bool, ...]) -> Tensor:
        """Return the flags on the device, where they usually are already."""
        signalled = self.interrupts is not None and self.interrupts.received is not None
        wanted = (*has, signalled)
        if self._flags is None or self._flags[0] != wanted:
            self._flags = wanted, torch.tensor(wanted, dtype=torch.float32, device=self.processes.device)
        return self._flags[1]

    def _gradients(self, numbers: Iterable[int]) -> list[Tensor]:
        gradients = []
        for number in numbers:
            parameter = self.parameters[number]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(sendable(parameter.grad))
        return gradients

    def _add_up(self, tensors: Sequence[Tensor]) -> None:
        changing = [sendable(buffer.value) for buffer in self.buffers]
        if changing and not self.processes.is_first:
            torch._foreach_zero_(changing)
        for bucket in buckets([*tensors, *changing]):
            self.processes.add_up(bucket)

    def _read(self, flags: Tensor) -> None:
        """Drop the gradients that no process has, and send those that were not expected. HOST SYNC."""
        assert self.sent is not None
        *counts, signalled = flags.tolist()
        self.signalled = signalled > 0
        for number in self.sent:
            if not counts[number]:
                self.parameters[number].grad = None
        sent = set(self.sent)
        late = [number for number, count in enumerate(counts) if count and number not in sent]
        for bucket in buckets(self._gradients(late)):
            self.processes.add_up(bucket)
        self.sent = sorted([*self.sent, *late])

    def _agree(self, has: tuple[bool, ...]) -> None:
        """Agree on the weights that are trained and the buffers that a step changes. HOST SYNC, once a phase."""
        pairs = list(zip(self.buffers, self._before, strict=True))
        changed = [before is not None and not torch.equal(buffer.value, before) for buffer, before in pairs]
        counts = torch.tensor([*has, *changed], dtype=torch.int32, device=self.processes.device)
        if counts.numel():
            torch_distributed.all_reduce(counts)
        seen = counts.tolist()
        self.sent = [number for number, count in enumerate(seen[: len(has)]) if count]
        self.buffers = [buffer for buffer, count in zip(self.buffers, seen[len(has) :], strict=True) if count]
        self._before = []


@dataclass(frozen=True)
class Buffer:
    """A buffer of a module, which may put another tensor in its place in each step."""

    module: nn.Module
    name: str

    @property
    def value(self) -> Tensor:
        found: Tensor = self.module._buffers[self.name]  # type: ignore[assignment]
        return found

    @property
    def is_alike(self) -> bool:
        """Return whether it is the same in all processes anyway: a count of batches, or nothing."""
        return self.name == "num_batches_tracked" or self.module._buffers[self.name] is None


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
