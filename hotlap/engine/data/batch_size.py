"""How many samples a second each batch size trains, and what memory it takes, over whole steps.

A larger batch is a different training: fewer and less noisy updates per epoch. So nothing is changed here; the report
says what would change, and the quality must be measured again.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adadelta, Adagrad, RMSprop

from hotlap.engine.data.errors import DataError, EmptySplit
from hotlap.engine.data.memory import in_words
from hotlap.engine.data.sources import is_resident
from hotlap.engine.seam import AnySource, Batch, Resident

WARM_UP = 2
ADAPTIVE = (Adadelta, Adagrad, RMSprop)  # and all that have betas
Step = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True)
class BatchSizeMeasurement:
    """Times of one batch size. `memory` is the device's peak on CUDA; elsewhere what a step holds: weights, gradients,
    optimizer state, the batch, and what the backward pass keeps."""

    batch_size: int
    seconds: tuple[float, ...]  # of each step
    memory: int

    @property
    def samples_a_second(self) -> float:
        return self.batch_size * len(self.seconds) / sum(self.seconds)


@dataclass(frozen=True)
class BatchSizes:
    """What was measured, the present size `now`, and the smallest size that is nearly as fast as the fastest."""

    rows: int
    now: int
    learning_rate: float
    adaptive: bool
    measured: tuple[BatchSizeMeasurement, ...]
    out_of_memory: tuple[int, ...]
    enough: float = 0.95

    @property
    def fastest(self) -> BatchSizeMeasurement:
        return max(self.measured, key=lambda measured: measured.samples_a_second)

    @property
    def suggested(self) -> BatchSizeMeasurement:
        limit = self.enough * self.fastest.samples_a_second
        return next(measured for measured in self.measured if measured.samples_a_second >= limit)

    def lines(self) -> list[str]:
        """Return a table, and what the suggested size would do to the training."""
        table = [f"{'batch':>7}  {'samples/s':>10}  {'ms/step':>8}  {'steps/epoch':>11}  memory"]
        for measured in self.measured:
            step = 1000 * sum(measured.seconds) / len(measured.seconds)
            steps = math.ceil(self.rows / measured.batch_size)
            mark = " now" if measured.batch_size == self.now else ""
            mark += " suggested" if measured is self.suggested else ""
            table.append(f"{measured.batch_size:>7}  {measured.samples_a_second:>10.0f}  {step:>8.3g}  {steps:>11}  "
                         f"{in_words(measured.memory)}{mark}")  # fmt: skip
        table += [f"{size:>7}  out of memory" for size in self.out_of_memory]
        return [*table, *self.meaning()]

    def meaning(self) -> list[str]:
        size = self.suggested.batch_size
        if size == self.now:
            return [f"batch size {size} is the smallest that is nearly as fast as the fastest: nothing to change"]
        before, after = math.ceil(self.rows / self.now), math.ceil(self.rows / size)
        factor = size / self.now
        usual = self.learning_rate * (math.sqrt(factor) if self.adaptive else factor)
        rule = "by the square root, usual for Adam and its kin" if self.adaptive else "in proportion, usual for SGD"
        return [
            f"batch size {self.now} -> {size} is a different training: {before} -> {after} updates per epoch, "
            f"each the mean of {factor:g} times as many samples",
            f"the learning rate {self.learning_rate:g} was right for {self.now}; a starting point for {size} is "
            f"{usual:.2g} ({rule}); nothing is changed for you: measure the quality again",
        ]


def measure_batch_sizes(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: Step,
    source: Resident,
    now: int,
    candidates: Sequence[int] | None = None,
    seconds: float = 0.3,
) -> BatchSizes:
    """Train copies of model and optimizer briefly with each size; yours and the random streams do not change.

    `step(model, batch)` returns the loss. If no candidates are given, `now` is doubled and halved, up to the number of
    rows; the first size that does not fit in memory ends the search upwards.
    """
    require_resident(source)
    if now < 1 or now > source.rows:
        raise EmptySplit(f"now={now} is not a batch size for {source.rows} rows; use 1 … {source.rows}")
    sizes = sorted({size for size in candidates or doublings(now, source.rows) if 1 <= size <= source.rows})
    if not sizes:
        raise DataError(f"no candidate batch size fits the {source.rows} rows: {candidates}; use 1 … {source.rows}")
    done: list[BatchSizeMeasurement] = []
    refused: list[int] = []
    with torch.random.fork_rng(devices=cuda_of(source.device)), restored(optimizer):
        for size in sizes:
            found = try_size(model, optimizer, step, source, size, seconds)
            if found is None:
                refused.append(size)
                break
            done.append(found)
    if not done:
        raise DataError(f"not even a batch of {sizes[0]} fits in the memory of {source.device}")
    group = optimizer.param_groups[0]
    adaptive = "betas" in group or isinstance(optimizer, ADAPTIVE)
    return BatchSizes(source.rows, now, float(group["lr"]), adaptive, tuple(done), tuple(refused))


@contextlib.contextmanager
def restored(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Restore the random streams that torch does not fork, and the gradients of the optimizer's tensors, since those
    outside the model, such as a loss's, are not copied."""
    python, arrays = random.getstate(), np.random.get_state()
    parameters = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    gradients = [None if tensor.grad is None else tensor.grad.clone() for tensor in parameters]
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


def require_resident(source: AnySource) -> None:
    if not is_resident(source):
        raise DataError(
            f"batch sizes are measured on rows in memory, but a {type(source).__name__} reads them as needed; give "
            "some of its rows: Tensors(*next(iter(source.batches(torch.arange(rows), rows, device))))"
        )


def doublings(now: int, rows: int) -> list[int]:
    return [size for power in range(-2, 6) if 1 <= (size := int(now * 2.0**power)) <= rows]


def cuda_of(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []


def try_size(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: Step, source: Resident, size: int, seconds: float
) -> BatchSizeMeasurement | None:
    """Measure one batch size; None if it does not fit in memory."""
    try:
        twins = copy.deepcopy((model, optimizer))  # together: the optimizer then has the twin's weights
        return timed(*twins, step, source, size, seconds)
    except torch.OutOfMemoryError:
        return None
    finally:
        twins = ()  # type: ignore[assignment]
        if source.device.type == "cuda":  # once per size, never during training: the next size starts from what is free
            gc.collect()
            torch.cuda.empty_cache()


def timed(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: Step, source: Resident, size: int, seconds: float
) -> BatchSizeMeasurement:
    device = source.device
    index = torch.arange(size, device=device)
    model.train()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    held = [one_step(model, optimizer, step, source.gather(index)) for _ in range(WARM_UP)]
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        finish(device)
        started = time.perf_counter()
        one_step(model, optimizer, step, source.gather(index), count=False)
        finish(device)  # host sync: this is a measurement, not a training
        times.append(time.perf_counter() - started)
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else max(held)
    return BatchSizeMeasurement(size, tuple(times), memory)


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: Step, batch: Batch, count: bool = True) -> int:
    """Run forward, backward and update; return the bytes held between forward and backward, and after the update."""
    optimizer.zero_grad(set_to_none=True)
    if not count:
        step(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return 0
    held: dict[int, int] = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in batch}

    def pack(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = step(model, batch)
    for parameter in model.parameters():  # weights are counted once, also where the graph keeps them
        held.pop(parameter.untyped_storage().data_ptr(), None)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return sum(held.values()) + sum(map(bytes_of, state_tensors(model, optimizer)))


def state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    states: list[Any] = [value for state in optimizer.state.values() for value in state.values()]
    return [*parameters, *model.buffers(), *gradients, *(value for value in states if isinstance(value, Tensor))]


def bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
