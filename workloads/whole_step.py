"""One training step on data that never leaves the device; on CUDA, one graph replayed per step.

The graph holds everything a step does: reading its batch of the epoch's order, gathering the samples,
forward, loss, backward, clipping, the optimizer step and adding up the loss. A step then costs the host one
launch, and an epoch one host sync (reading the loss).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

WARM_UP_STEPS = 3

BatchLoss = Callable[[Tensor], Tensor]
Step = Callable[[], None]
Moments = dict[tuple[int, str], Tensor]


def use_fast_arithmetic(device: torch.device) -> None:
    """Use TF32 for float32 matrix products and cuDNN, and measured convolutions; the CPU keeps full float32."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True


def make_fused(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Switch an Adam-like optimizer to its one-kernel form; only right before its first step.

    On CUDA the rate becomes a tensor: `set_learning_rate` then reaches the graphs already captured.
    """
    on_cuda = device.type == "cuda"
    for group in optimizer.param_groups:
        rate = torch.tensor(float(group["lr"]), device=device) if on_cuda else group["lr"]
        group.update(fused=True, foreach=False, capturable=on_cuda, lr=rate)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # in place: the graph reads this address
        else:
            group["lr"] = rate


class WholeStep:
    """Trains the parameters of `model` that require gradients on `samples` samples per epoch, given by index.

    `batch_loss(indices)` gathers those samples from device memory and returns the mean loss over them. All
    shapes must depend on `len(indices)` only. `compiled` compiles the full batches alone: the shorter last one
    runs once an epoch, which never pays for compiling it.
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
        compiled: bool = False,
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
        self.full_loss = torch.compile(batch_loss, dynamic=False) if compiled else batch_loss
        self.run_full = self._ready(self._full_step, f"batches of {self.batch_size}", compiled)
        self.run_tail = self._ready(self._tail_step, f"last batch of {self.tail}") if self.tail else None

    def epoch(self, order: Tensor) -> float:
        """Train once on every sample in this order; returns the mean of the batches' losses."""
        self.model.train()
        self.order.copy_(order)
        self.position.zero_()
        self.loss_sum.zero_()
        for _ in range(self.full_batches):
            self.run_full()
        if self.run_tail is not None:
            self.run_tail()
        return self.loss_sum.item() / (self.full_batches + bool(self.tail))  # the epoch's only host sync

    def _full_step(self) -> None:
        self._step(self.full_loss, self.batch_size)

    def _tail_step(self) -> None:
        self._step(self.batch_loss, self.tail)

    def _step(self, batch_loss: BatchLoss, size: int) -> None:
        indices = self.order[self.position + self.offsets[:size]]
        self.optimizer.zero_grad(set_to_none=True)
        loss = batch_loss(indices)
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip, foreach=True)
        self.optimizer.step()
        self.loss_sum += loss.detach()
        self.position += size

    def _ready(self, step: Step, what: str, compiled: bool = False) -> Step:
        """Return `step` itself, or on CUDA its graph; say on stderr what is being waited for."""
        if self.device.type != "cuda":
            return step
        started = time.perf_counter()
        say(f"{what}: {'compiling' if compiled else 'warming up'} …")
        before, moments = self._snapshot()
        self._warm_up(step)
        say(f"{what}: capturing …")
        graph = self._capture(step)
        self._restore(before, moments)
        say(f"{what}: ready after {time.perf_counter() - started:.1f} s")
        return graph.replay  # keeps the graph, and with it the memory its kernels use

    def _warm_up(self, step: Step) -> None:
        """Let cuDNN, cuBLAS and the compiler choose and allocate before capture, on a stream of their own."""
        self.model.train()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                self.position.zero_()
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)  # so that gradients live in the graph's own memory

    def _capture(self, step: Step) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph

    def _snapshot(self) -> tuple[list[Tensor], Moments]:
        return [tensor.detach().clone() for tensor in self._model_tensors()], {
            key: value.clone() for key, value in self._moments().items()
        }

    @torch.no_grad()
    def _restore(self, before: list[Tensor], moments: Moments) -> None:
        """Undo the warm-up in place, since the graph holds the addresses.

        Moments that only the warm-up made go back to zero, as a fresh optimizer has them.
        """
        for tensor, saved in zip(self._model_tensors(), before, strict=True):
            tensor.copy_(saved)
        for key, value in self._moments().items():
            if key in moments:
                value.copy_(moments[key])
            else:
                value.zero_()
        self.position.zero_()
        self.loss_sum.zero_()

    def _model_tensors(self) -> list[Tensor]:
        return [*self.model.parameters(), *self.model.buffers()]

    def _moments(self) -> Moments:
        return {
            (index, name): value
            for index, parameter in enumerate(self.parameters)
            for name, value in self.optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
