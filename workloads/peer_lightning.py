"""A workload trained with Lightning and its documented fast settings.

python peer_lightning.py battery_fnn --size small [--seed 0] [--device cuda] [--precision bf16] [--compile]
"""

from __future__ import annotations

import logging
from typing import Any

import peer
import torch
from torch import Tensor, nn

lightning = peer.framework("lightning")


class Training(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """One phase of one workload; prints one line per epoch."""

    def __init__(self, task: peer.Task, model: nn.Module, phase: peer.Phase) -> None:
        super().__init__()
        self.task, self.model, self.phase = task, model, phase
        # The model, not the whole step: a loss over ragged targets would be compiled anew for each number of them.
        self.fast: Any = torch.compile(model) if task.speed.compile else model
        self.clock = peer.EpochClock(task)
        self.loss_sum = torch.zeros((), device=task.device)
        self.value = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.task.loss(self.fast, batch)
        self.loss_sum += loss.detach()  # on the device: no step waits for it
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = self.task.optimizer(self.model, self.phase)
        schedule = self.task.schedule(optimizer, self.phase)
        return optimizer if schedule is None else ([optimizer], [schedule])

    def on_fit_start(self) -> None:
        self.clock.start()  # Lightning starts the workers before the hook of the first epoch: counted in it

    def on_train_epoch_start(self) -> None:
        if self.current_epoch > 0:
            self.clock.start()
        self.loss_sum.zero_()

    def on_train_epoch_end(self) -> None:
        seconds = self.clock.seconds()
        loss = self.loss_sum.item() / self.trainer.num_training_batches
        self.value = self.task.score(self.model)
        peer.report_epoch(self.task, self.phase.epochs.start + self.current_epoch, loss, self.value, seconds)


def build_trainer(task: peer.Task, phase: peer.Phase) -> Any:
    return lightning.Trainer(
        accelerator="gpu" if task.device.type == "cuda" else "cpu",
        devices=1,
        max_epochs=len(phase.epochs),
        precision={"32": "32-true", "bf16": "bf16-mixed"}[task.speed.precision],
        gradient_clip_val=task.clip,
        benchmark=task.recipe.convolutional,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )


def train(task: peer.Task, model: nn.Module) -> float:
    value = 0.0
    for phase in task.phases():
        training = Training(task, model, phase)
        build_trainer(task, phase).fit(training, task.loader)
        value = training.value
    return value


def main(arguments: list[str] | None = None) -> int:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    return peer.run("Lightning", train, arguments)


if __name__ == "__main__":
    peer.leave(main())
