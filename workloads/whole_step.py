"""One training step on data that never leaves the device; on CUDA, one graph replayed per step.

The graph holds everything a step does: reading its batch of the epoch's order, gathering the samples,
forward, loss, backward, clipping, the optimizer step and adding up the loss. A step then costs the host one
launch, and an epoch one host sync (reading the loss).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

WARM_UP_STEPS = 3

BatchLoss = Callable[[Tensor], Tensor]


def use_fast_arithmetic(device: torch.device) -> None:
    """TF32 for float32 matrix products and cuDNN; the CPU keeps full float32."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True


def make_fused(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Switch an Adam-like optimizer to its one-kernel form; only right before its first step."""
    for group in optimizer.param_groups:
        group["fused"] = True
        group["foreach"] = False
        group["capturable"] = device.type == "cuda"  # step count on the device, as a graph needs


class WholeStep:
    """Trains `model` on samples named by index.

    `batch_loss(indices)` gathers those samples from device memory and returns the mean loss over them. All
    shapes must depend on `len(indices)` only.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch_loss: BatchLoss,
        samples: int,
        batch_size: int,
        device: torch.device,
        clip: float | None = None,
    ) -> None:
        self.model, self.optimizer, self.batch_loss, self.clip = model, optimizer, batch_loss, clip
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.device = device
        self.batch_size = min(batch_size, samples)
        self.full_batches, self.tail = divmod(samples, self.batch_size)
        # A graph reads these very buffers at every replay: they are written in place, never replaced.
        self.order = torch.arange(samples, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.offsets = torch.arange(self.batch_size, device=device)
        self.loss_sum = torch.zeros((), device=device)
        self.run_full, self.run_tail = self._runners()

    def epoch(self, order: Tensor) -> float:
        """Train once on every sample in this order; returns the mean of the batches' losses."""
        self.model.train()
        self.order.copy_(order)
        self.position.zero_()
        self.loss_sum.zero_()
        for _ in range(self.full_batches):
            self.run_full()
        if self.tail:
            self.run_tail()
        return self.loss_sum.item() / (self.full_batches + bool(self.tail))  # the epoch's only host sync

    def _runners(self) -> tuple[Callable[[], None], Callable[[], None]]:
        def full() -> None:
            self._step(self.batch_size)

        def tail() -> None:
            self._step(self.tail)

        if self.device.type != "cuda":
            return full, tail
        return self._captured(full), self._captured(tail) if self.tail else tail

    def _step(self, size: int) -> None:
        indices = self.order[self.position + self.offsets[:size]]
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.batch_loss(indices)
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip, foreach=True)
        self.optimizer.step()
        self.loss_sum += loss.detach()
        self.position += size

    def _captured(self, step: Callable[[], None]) -> Callable[[], None]:
        """`step` as a CUDA graph; warming up and capturing leave weights and optimizer as they were."""
        self.model.train()
        before = [parameter.detach().clone() for parameter in self.parameters]
        self._warm_up(step)
        self.optimizer.zero_grad(set_to_none=True)  # so that gradients live in the graph's own memory
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        self._restore(before)
        return graph.replay

    def _warm_up(self, step: Callable[[], None]) -> None:
        """Let cuDNN, cuBLAS and the compiler choose and allocate before capture, on a stream of their own."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                self.position.zero_()
                step()
        torch.cuda.current_stream().wait_stream(stream)

    def _restore(self, before: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, before, strict=True):
                parameter.copy_(value)
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()  # Adam starts from zero moments and step 0; in place, the graph reads them
        self.position.zero_()
        self.loss_sum.zero_()
