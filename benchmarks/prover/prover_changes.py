"""A training loop, and the changes planted into it: twelve that harm and some that only round differently.

Each change overrides the one thing it breaks, the way a faulty optimisation would.
"""

from __future__ import annotations

from typing import Any

import torch
from prover_tasks import Batch, Task
from torch import Tensor, nn

NUDGE = 2.0**-16  # relative to the weight


class Training:
    """The loop as written."""

    def __init__(self, task: Task, seed: int, nudge: int = 0) -> None:
        self.task = task
        torch.manual_seed(seed)
        self.model = task.build_model()
        self.optimizer = task.build_optimizer(self.model)
        self.shuffle = torch.Generator().manual_seed(seed)
        self.number = 0  # steps taken
        self.model.train()
        self.prepare()
        if nudge:
            _nudge(self.model, nudge)

    def losses(self, steps: int) -> list[float]:
        found: list[float] = []
        self.steps = steps
        while len(found) < steps:
            for group in self.groups(self.order().split(self.task.batch)):
                found.append(self.step(group))
                self.number += 1
                if len(found) == steps:
                    break
        return found

    def step(self, group: list[Tensor]) -> float:
        self.optimizer.zero_grad()
        total = 0.0
        for rows in group:
            loss = self.loss(self.batch(rows)) / len(group)
            self.backward(loss)
            total += loss.item()
        self.gradients()
        if self.task.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip)
        self.update()
        return total

    def prepare(self) -> None:
        """Called once, before the first step."""

    def order(self) -> Tensor:
        return torch.randperm(self.task.samples, generator=self.shuffle)

    def groups(self, batches: tuple[Tensor, ...]) -> list[list[Tensor]]:
        micro = self.task.micro
        return [list(batches[at : at + micro]) for at in range(0, len(batches), micro)]

    def batch(self, rows: Tensor) -> Batch:
        return self.task.gather(rows)

    def loss(self, batch: Batch) -> Tensor:
        return self.task.loss(self.model(batch[0]), batch[1])

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def gradients(self) -> None:
        """Called after the backward passes of a step, before clipping."""

    def update(self) -> None:
        self.optimizer.step()


@torch.no_grad()
def _nudge(model: nn.Module, number: int) -> None:
    """Nudge the weights. Each number nudges differently, and none repeats the stream the weights were drawn from."""
    random = torch.Generator().manual_seed(1_000_003 * number)
    for weight in model.parameters():
        weight.mul_(1 + NUDGE * (2 * torch.rand(weight.shape, generator=random) - 1))


# The twelve that harm.


class DroppedGradients(Training):
    def update(self) -> None:
        if self.number % 10 != 9:
            super().update()


class HalfWithoutScaling(Training):
    """Weights, gradients and the optimizer's moments in float16, and nothing that keeps them from underflowing."""

    def prepare(self) -> None:
        _round_layers(self.model, torch.float16)

    @torch.no_grad()
    def update(self) -> None:
        super().update()
        tensors = [
            *self.model.parameters(),
            *(tensor for state in self.optimizer.state.values() for tensor in state.values()),
        ]
        for tensor in tensors:
            tensor.copy_(tensor.half())


class HalfLayersWithoutScaling(Training):
    """Only what passes between the layers is float16, in both directions."""

    def prepare(self) -> None:
        _round_layers(self.model, torch.float16)


class RateLostInRebuild(Training):
    def update(self) -> None:
        if self.number == self.steps // 2:
            state = self.optimizer.state_dict()["state"]
            self.optimizer = type(self.optimizer)(self.model.parameters())  # with torch's own rate
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        super().update()


class BrokenShuffling(Training):
    def order(self) -> Tensor:
        return torch.arange(self.task.samples)


class StaleBatch(Training):
    """A buffer filled again before it was read: now and then a batch is the one before."""

    last: Batch | None = None

    def batch(self, rows: Tensor) -> Batch:
        fresh = super().batch(rows)
        stale, self.last = self.last, fresh
        return stale if stale is not None and self.number % 8 == 7 else fresh


class WrongLossScale(Training):
    """Gradients still scaled when they are clipped and used."""

    def backward(self, loss: Tensor) -> None:
        (loss * 1024).backward()


class AccumulationTailDropped(Training):
    def groups(self, batches: tuple[Tensor, ...]) -> list[list[Tensor]]:
        return [group for group in super().groups(batches) if len(group) == self.task.micro]


class FrozenBatchNorm(Training):
    def prepare(self) -> None:
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()


class DropoutOff(Training):
    def prepare(self) -> None:
        self.model.eval()


class WeightDecayLost(Training):
    def prepare(self) -> None:
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.0


class LabelsCast(Training):
    def batch(self, rows: Tensor) -> Batch:
        inputs, labels = super().batch(rows)
        return inputs, labels.bfloat16().to(labels.dtype)


class OptimizerStateReset(Training):
    def update(self) -> None:
        if self.number == self.steps // 2:
            self.optimizer.state.clear()
        super().update()


# What only rounds differently.


class ForeachOptimizer(Training):
    def prepare(self) -> None:
        for group in self.optimizer.param_groups:
            group.update(foreach=True)


class FusedOptimizer(Training):
    def prepare(self) -> None:
        for group in self.optimizer.param_groups:
            group.update(fused=True, foreach=False)


class OtherSummationOrder(Training):
    """The same batch, its samples the other way round."""

    def batch(self, rows: Tensor) -> Batch:
        return super().batch(rows.flip(0))


class BatchInTwoHalves(Training):
    """The mean over a batch from the means over its parts."""

    def loss(self, batch: Batch) -> Tensor:
        whole = len(batch[1])
        parts = zip(batch[0].split(whole // 2 + 1), batch[1].split(whole // 2 + 1), strict=True)
        return sum(len(part[1]) / whole * Training.loss(self, part) for part in parts)


class ChannelsLast(Training):
    def prepare(self) -> None:
        self.model.to(memory_format=torch.channels_last)

    def batch(self, rows: Tensor) -> Batch:
        images, labels = super().batch(rows)
        return images.contiguous(memory_format=torch.channels_last), labels


class OtherConvolutions(Training):
    """Convolutions without oneDNN."""

    def step(self, group: list[Tensor]) -> float:
        with torch.backends.mkldnn.flags(enabled=False):
            return super().step(group)


class Bfloat16(Training):
    """Every layer outputs bfloat16: lower precision that harms nothing, though it is more than mere rounding.

    Emulated, because autocast on a CPU without bfloat16 is a hundred times slower.
    """

    def prepare(self) -> None:
        _round_layers(self.model, torch.bfloat16)


def _round_layers(model: nn.Module, kind: torch.dtype) -> None:
    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _, __, output: _Rounded.apply(output, kind))


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, kind: torch.dtype) -> Tensor:
        ctx.kind = kind
        return value.to(kind).float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.kind).float(), None
