"""A workload trained with Accelerate and its documented fast settings.

python peer_accelerate.py battery_fnn --size small [--seed 0] [--device cuda] [--precision bf16] [--compile]
"""

from __future__ import annotations

import copy
from typing import Any

import peer
import torch
from torch import nn

accelerate = peer.framework("accelerate")


def build_accelerator(task: peer.Task) -> Any:
    return accelerate.Accelerator(
        cpu=task.device.type == "cpu",
        mixed_precision={"32": "no", "bf16": "bf16"}[task.speed.precision],
        dynamo_backend="inductor" if task.speed.compile else "no",
        dataloader_config=accelerate.DataLoaderConfiguration(non_blocking=True),
    )


def train_epoch(task: peer.Task, accelerator: Any, model: nn.Module, loader: Any, optimizer: Any) -> torch.Tensor:
    """Train one epoch; return the sum of the batches' losses, still on the device."""
    loss_sum = torch.zeros((), device=task.device)
    for batch in loader:
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        accelerator.backward(loss)
        if task.clip is not None:
            accelerator.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()
        loss_sum += loss.detach()
    return loss_sum


def train(task: peer.Task, plain: nn.Module) -> float:
    accelerator = build_accelerator(task)
    scored = copy.deepcopy(plain)  # prepare() wraps forward in autocast for good; scores are taken without it
    model, loader = accelerator.prepare(plain, task.loader)
    clock, value = peer.EpochClock(task), 0.0
    for phase in task.phases():
        bare = task.optimizer(plain, phase)
        optimizer, schedule = accelerator.prepare(bare, task.schedule(bare, phase))
        for epoch in phase.epochs:
            clock.start()
            loss_sum = train_epoch(task, accelerator, model, loader, optimizer)
            seconds = clock.seconds()
            if schedule is not None:
                schedule.step()
            scored.load_state_dict(plain.state_dict())
            value = task.score(scored)
            peer.report_epoch(task, epoch, loss_sum.item() / len(loader), value, seconds)
    return value


def main(arguments: list[str] | None = None) -> int:
    return peer.run("Accelerate", train, arguments)


if __name__ == "__main__":
    peer.leave(main())
