"""One whole optimizer step: forward, loss, backward, unscale, clip, step and averages, and its loss recorded.

Nothing here waits for the device or depends on the host except for shapes: the same code runs step by step or is
captured once and replayed.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hotlap.engine.comparisons import Comparing, different
from hotlap.engine.errors import BadRecipe
from hotlap.engine.forks import Forks
from hotlap.engine.geometry import Sizes
from hotlap.engine.gradient_sum import GradientSum
from hotlap.engine.interrupts import Interrupts
from hotlap.engine.metrics import Metric
from hotlap.engine.optimizers import Clipping, LearningRates, can_clip, clip_each, clip_shards, clip_together
from hotlap.engine.processes import Processes
from hotlap.engine.recipe import LOW
from hotlap.engine.seam import Batch
from hotlap.engine.several import Several, each
from hotlap.engine.sharding import held, is_sharded
from hotlap.kernels.adam import one_launch

Losses = dict[str, Tensor]
Found = tuple[
    Losses, Any, Batch
]  # by name, "loss" being what is minimised; outputs and targets where metrics need them
LossOf = Callable[[Any], Found]  # of a batch, or of where to gather it
ROUNDING = 2.0**-25  # of float32


class Forward:
    """Computes the losses of a batch. `step(model, batch)`, if given, replaces model and loss."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any] | None,
        step: Callable[[nn.Module, Batch], Any] | None,
        inputs: int,
        weights: Mapping[str, float],
        precision: str,
        channels_last: bool,
    ) -> None:
        self.model, self.loss, self.step, self.inputs, self.weights = model, loss, step, inputs, weights
        self.dtype, self.channels_last = LOW.get(precision), channels_last
        self.has_compared = False  # outputs and targets, in a first loss
        self.keeps_outputs = False  # for metrics of the training; a compiled step then writes them to memory

    def __call__(self, batch: Batch) -> Found:
        device, targets = batch[0].device.type, batch[self.inputs :]
        if self.step is not None:
            with self._casting(device):
                found = self.step(self.model, batch)
            return self.named(in_full(found)), None, ()
        outputs = self.outputs(batch)
        assert self.loss is not None
        is_first = not self.has_compared and not torch.compiler.is_compiling()
        with Comparing(outputs, targets) if is_first else contextlib.nullcontext():
            losses = self.named(self.loss(outputs, *targets))
        self.has_compared = self.has_compared or is_first
        return (losses, outputs, targets) if self.keeps_outputs else (losses, None, ())

    def outputs(self, batch: Batch) -> Any:
        """Return the model's outputs in float32: losses and metrics are not computed in half precision."""
        inputs = [self._laid_out(tensor) for tensor in batch[: self.inputs]]
        with self._casting(batch[0].device.type):
            outputs = self.model(*inputs)
        return in_full(outputs) if self.dtype is not None else outputs

    def _casting(self, device: str) -> Any:
        # Without its cache: a weight that was cast once would not follow the training in a captured graph.
        return torch.autocast(device, self.dtype, cache_enabled=False) if self.dtype else contextlib.nullcontext()

    def _laid_out(self, tensor: Tensor) -> Tensor:
        if self.channels_last and tensor.dim() == 4:
            return tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def named(self, found: Any) -> Losses:
        if isinstance(found, Tensor):
            if self.weights:
                raise BadRecipe(
                    f"loss_weights names {sorted(self.weights)}, but the loss returned one tensor; "
                    "return a dict of its parts by name, or leave loss_weights out"
                )
            return {"loss": found}
        if not isinstance(found, Mapping) or not found:
            raise BadRecipe(f"the loss returned {type(found).__name__}; return a tensor or a dict of tensors")
        found = {name: one_number(name, value) for name, value in found.items()}
        if unknown := set(self.weights) - set(found):
            raise BadRecipe(f"loss_weights names {sorted(unknown)}, but the loss returned {sorted(found)}")
        require_no_total(found)
        total = sum(self.weights.get(name, 1.0) * value for name, value in found.items())
        return {"loss": total, **{name: value for name, value in found.items() if name != "loss"}}


def one_number(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise BadRecipe(f"the loss returned {name!r} of type {type(value).__name__}; return tensors of one number each")
    if value.numel() != 1:
        shape = tuple(value.shape)
        raise BadRecipe(f"the loss returned {name!r} of shape {shape}; return one number, such as {name}.mean()")
    return value.reshape(()) if value.dim() else value


def require_no_total(losses: Mapping[str, Any]) -> None:
    """Refuse a total among the parts: all of them are added up, so it would count twice."""
    if "loss" in losses and len(losses) > 1:
        parts = ", ".join(f'"{name}": …' for name in losses if name != "loss")
        raise BadRecipe(
            'the loss returned "loss" along with its parts, which are added up, so it would count twice; '
            f"return {{{parts}}} without it, weighted by Recipe(loss_weights={{…}}), or the total alone as a tensor"
        )


def in_full(found: Any) -> Any:
    """Convert half-precision tensors to float32, wherever they are in tuples, lists and dicts."""
    if isinstance(found, Tensor):
        return found.float() if found.dtype in (torch.bfloat16, torch.float16) else found
    if isinstance(found, dict):
        return {name: in_full(value) for name, value in found.items()}
    if isinstance(found, tuple) and hasattr(found, "_fields"):
        return type(found)(*map(in_full, found))
    if isinstance(found, list | tuple):
        return type(found)(map(in_full, found))
    return found


def beside(loss: Any, step: Any) -> nn.Module | None:
    """Return the loss or step if it is a module with weights or buffers of its own, else None."""
    given = loss if step is None else step
    return given if isinstance(given, nn.Module) and [*given.parameters(), *given.buffers()] else None


class Tally:
    """The device's own count of the steps of this epoch, and the losses of each."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self.steps, self.device = steps, device
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.names: tuple[str, ...] = ()
        self.losses = torch.zeros(steps, 1, device=device)

    def begin(self, step: int) -> None:
        self.step.fill_(step)

    def name(self, names: Sequence[str]) -> None:
        """Set the names, known from the first loss and before anything is captured, since memory is allocated here."""
        self.names = tuple(names)
        self.losses = torch.zeros(self.steps, len(names), device=self.device)

    def record(self, values: Tensor) -> None:
        self.losses.index_copy_(0, self.step, values)
        self.step.add_(1)


def has_digits(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def as_real(tensor: Tensor) -> Tensor:
    """Return the memory of what this process holds, with complex numbers as their two parts."""
    own = held(tensor)
    return torch.view_as_real(own) if own.is_complex() else own


class Average:
    """Averaged weights, updated on the device after each step. Buffers are not averaged: they are the model's.

    `tensors` begin at zero, so that the weights before the first step have no part in the average. What that leaves
    out is divided out where the average is read, by the number of `updates`, which the host counts.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.parameters = [parameter for parameter in model.parameters() if has_digits(parameter)]
        self.tensors = [torch.zeros_like(parameter) for parameter in self.parameters]

    def update(self) -> None:
        with torch.no_grad():
            now = [as_real(parameter) for parameter in self.parameters]
            torch._foreach_lerp_([as_real(tensor) for tensor in self.tensors], now, 1.0 - self.decay)

    @property
    def share(self) -> float:
        """Return how much of `tensors` is weights; the rest, until rounding loses it, is the zeros they began at."""
        zeros = self.decay**self.updates
        return 1.0 if zeros < ROUNDING else 1.0 - zeros

    def values(self) -> list[Tensor]:
        """Return copies of the averages, or of the weights where nothing has been averaged."""
        if not self.updates:
            return [parameter.detach().clone() for parameter in self.parameters]
        return [tensor / self.share for tensor in self.tensors]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the averages within the block, in place: graphs hold the addresses of its weights."""
        weights = [held(parameter) for parameter in self.parameters]
        with torch.no_grad():
            own, averages = [weight.clone() for weight in weights], [held(value) for value in self.values()]
            torch._foreach_copy_(weights, averages)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, own)


def _first_found(loss_of: LossOf, item: Any, rows: int) -> Found:
    """Return the first loss; raise for one that is not one number, or of outputs and targets that torch would repeat
    until their shapes fit.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Using a target size")
        try:
            found = loss_of(item)
        except UserWarning as error:
            shapes = " and ".join(re.findall(r"\[[\d, ]*\]", str(error)))
            raise different(shapes) from error
    loss = found[0]["loss"]
    if loss.numel() != 1:
        raise BadRecipe(
            f"the loss has shape {list(loss.shape)} for {rows} rows; return one number, such as loss.mean()"
        )
    return found


class Update:
    """Runs one optimizer step; called with what makes the batches of its window."""

    def __init__(
        self,
        forward: Forward,
        optimizer: Optimizer,
        learning: LearningRates,
        tally: Tally,
        clip: float | None,
        scaler: torch.amp.GradScaler | None,
        average: Average | None,
        metrics: Mapping[str, Metric],
        processes: Processes | None = None,
        clip_value: float | None = None,
        interrupts: Interrupts | None = None,
    ) -> None:
        self.forward, self.optimizer, self.learning, self.tally = forward, optimizer, learning, tally
        forward.keeps_outputs = bool(metrics)
        self.clip, self.scaler, self.average, self.metrics = clip, scaler, average, metrics
        self.clip_value = clip_value
        owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.parameters = [parameter for parameter in owned if parameter.requires_grad]
        self.unit = torch.ones((), device=tally.device)
        whole = [parameter for parameter in self.parameters if not is_sharded(parameter)]  # torch adds up the others
        trained = [module for module in (forward.model, beside(forward.loss, forward.step)) if module is not None]
        modules = {inner: None for module in trained for inner in module.modules()}
        self.sum_of_all = None if processes is None else GradientSum(processes, whole, modules, interrupts)
        self.processes = processes
        self.shards: Any = forward.model if processes is not None and processes.shards else None
        by_kernel = clip is not None and scaler is None and self.shards is None and can_clip(optimizer, tally.device)
        self.clipping = Clipping(clip, tally.device) if clip is not None and by_kernel else None
        may_launch = scaler is None and self.shards is None and not isinstance(optimizer, Several)
        self.adam = one_launch(optimizer, clip, tally.device) if may_launch else None
        self.by_loss = _by_loss(optimizer)

    def __call__(self, items: Iterable[Any], sizes: Sizes, loss_of: LossOf) -> None:
        losses = self.gradients(items, sizes, loss_of)
        self.learning.apply(self.tally.step)
        forks = loss_of if isinstance(loss_of, Forks) else None
        with contextlib.nullcontext() if forks is None else forks.beside(losses):
            self.tally.record(losses)
            if forks is not None:
                forks.last()
        self._step()
        if self.average is not None:
            self.average.update()
        if forks is not None:
            forks.join()

    def gradients(self, items: Iterable[Any], sizes: Sizes, loss_of: LossOf) -> Tensor:
        """Run a window forward and backward; return its losses. Both are of all processes that share it."""
        for parameter in self.parameters:  # what zero_grad does, without the cost of its profiler record
            parameter.grad = None
        total: Tensor | None = None
        for number, (item, size, share) in enumerate(zip(items, sizes, sizes.shares, strict=True), 1):
            if self.shards is not None and len(sizes) > 1:
                self.shards.set_requires_gradient_sync(number == len(sizes))
            values = self._backward(item, size, share, loss_of)
            total = values if total is None else total + values
        if self.sum_of_all is not None:
            total = torch.zeros(1, len(self.tally.names), device=self.tally.device) if total is None else total
            self.sum_of_all(total)
        if self.shards is not None and self.processes is not None:
            of_all = [held(weight.grad) for weight in self.parameters if is_sharded(weight) and weight.grad is not None]
            if of_all:
                torch._foreach_mul_(of_all, float(self.processes.count))  # torch took their mean
        assert total is not None
        return total

    def _backward(self, item: Any, rows: int, share: float, loss_of: LossOf) -> Tensor:
        """Weight a batch by its rows, so that a window is one large batch whatever the size of its last batch."""
        if not self.tally.names:
            losses, outputs, targets = _first_found(loss_of, item, rows)
            self.tally.name(tuple(losses))
        else:
            losses, outputs, targets = loss_of(item)
        if tuple(losses) != self.tally.names:
            before, now = ", ".join(self.tally.names), ", ".join(losses)
            raise BadRecipe(f"the loss returned {now}, but {before} before; it must return the same names every time")
        self._differentiate(losses, share)
        if isinstance(loss_of, Forks):
            loss_of.join()
        if self.metrics and share:
            with torch.no_grad():
                for metric in self.metrics.values():
                    metric.rows = rows
                    metric.update(outputs, *targets)
        values = [loss.detach().float() for loss in losses.values()]
        together = values[0].reshape(1, 1) if len(values) == 1 else torch.stack(values).reshape(1, -1)
        return together if share == 1.0 else together * share

    def _differentiate(self, losses: Losses, share: float) -> None:
        """Compute the gradients, of each loss for the weights of its own optimizer where there are several by name."""
        if not self.by_loss:
            self._backward_of(losses["loss"], share, None, False)
            return
        if set(self.by_loss) != set(losses) - {"loss"}:
            names, own = ", ".join(sorted(self.by_loss)), ", ".join(sorted(set(losses) - {"loss"})) or "a single one"
            raise BadRecipe(f"the optimizers are for the losses {names}, but there is {own}; use the same names")
        for number, (name, parameters) in enumerate(self.by_loss.items(), 1):
            loss = losses[name] * self.forward.weights.get(name, 1.0)
            self._backward_of(loss, share, parameters, number < len(self.by_loss))

    def _backward_of(self, loss: Tensor, share: float, inputs: list[Tensor] | None, again: bool) -> None:
        """Start the backward pass from the share rather than scale the loss, whose value may still be on its way."""
        if self.scaler is not None:
            scaled = self.scaler.scale(loss * share if share != 1.0 else loss)
            scaled.backward(inputs=inputs, retain_graph=again)  # type: ignore[no-untyped-call]
        else:
            is_one = share == 1.0 and not loss.dim() and loss.dtype is self.unit.dtype
            begin = self.unit if is_one else torch.full(loss.shape, share, dtype=loss.dtype, device=loss.device)
            loss.backward(begin, inputs=inputs, retain_graph=again)  # type: ignore[no-untyped-call]

    def _step(self) -> None:
        if self.clip_value is not None:
            self._unscale()
            clip_each(self.parameters, self.clip_value)
        if self.adam is not None and self.adam.step():
            return
        if self.clipping is not None:
            self.clipping.step(self.optimizer, self.parameters)
            return
        if self.clip is not None:
            self._unscale()
            if self.shards is None:
                clip_together(self.parameters, self.clip)
            else:
                assert self.processes is not None
                clip_shards(self.parameters, self.clip, self.processes)
        if self.scaler is None:
            self.optimizer.step()
        else:
            for optimizer in each(self.optimizer):
                self.scaler.step(optimizer)  # skipped by a flag on the device where the optimizer is fused
            self.scaler.update()

    def _unscale(self) -> None:
        if self.scaler is not None:
            for optimizer in each(self.optimizer):
                self.scaler.unscale_(optimizer)


def _by_loss(optimizer: Optimizer) -> dict[str, list[Tensor]]:
    """Return the weights trained along each loss, where optimizers have the names of losses."""
    names = optimizer.names if isinstance(optimizer, Several) else ()
    return {
        name: [weight for group in own.param_groups for weight in group["params"] if weight.requires_grad]
        for name, own in zip(names, each(optimizer), strict=bool(names))
    }
