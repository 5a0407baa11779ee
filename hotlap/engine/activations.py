"""Which blocks compute their activations twice where memory is short, measured on a copy with part of a batch.

A block that keeps much and computes little is the first to be recomputed; blocks that fit keep what they have.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hotlap.engine.data.batch_size import bytes_of, finish
from hotlap.engine.data.iterables import seeded
from hotlap.engine.data.memory import device_free, in_words
from hotlap.engine.data.sources import is_resident
from hotlap.engine.errors import BadRecipe
from hotlap.engine.order import order_of
from hotlap.engine.recipe import Recipe
from hotlap.engine.regions import blocks_of_lists
from hotlap.engine.seam import AnySource, Batch
from hotlap.engine.twin import AnyTrainer, twin_of

SHARE = 0.8  # of the free memory that a step may take: the rest is for what kernels need meanwhile
PART = 8  # of a batch is enough to measure by


@dataclass(frozen=True)
class BlockCost:
    """What a block keeps of a whole batch for the backward pass besides its inputs, and how long its forward takes."""

    name: str
    saved: int
    seconds: float


def settled(trainer: AnyTrainer, source: AnySource) -> Recipe:
    """Return the recipe with the blocks that must be recomputed for a step to fit; one line says which, and why."""
    if trainer.processes is not None and trainer.processes.shards:
        raise BadRecipe('activation_checkpointing="auto" measures a copy, and weights that are shared out have none')
    recipe = replace(trainer.recipe, activation_checkpointing=False)
    with seeded(recipe.seed):
        rows, batch = _part_of_a_batch(trainer, source)
        twin = twin_of(trainer, replace(recipe, phases=()))
        twin._move()
        total, costs = _measured(twin, batch, recipe.batch_size / rows)
    free = device_free(trainer.device)
    needed = total + _state_bytes(trainer.model)
    chosen = to_recompute(costs, needed - int(SHARE * free))
    trainer.say(line(needed, free, chosen, costs))
    return replace(recipe, activation_checkpointing=tuple(cost.name for cost in chosen))


def to_recompute(costs: list[BlockCost], missing: int) -> list[BlockCost]:
    """Return the blocks that free so many bytes in the least time, by how much each frees in a second."""
    chosen: list[BlockCost] = []
    for cost in sorted(costs, key=lambda cost: cost.saved / max(cost.seconds, 1e-9), reverse=True):
        if missing <= 0:
            break
        if cost.saved > 0:
            chosen.append(cost)
            missing -= cost.saved
    return chosen


def line(needed: int, free: int, chosen: list[BlockCost], costs: list[BlockCost]) -> str:
    begins = f"activations: a step needs {in_words(needed)} of the {in_words(free)} that are free"
    if not chosen and needed <= SHARE * free:
        return f"{begins}, so none are computed twice"
    if not chosen:
        return f"{begins}, and no block keeps any that it could compute twice; use smaller batches with accumulate"
    saved, again = sum(cost.saved for cost in chosen), sum(cost.seconds for cost in chosen)
    share = again / sum(cost.seconds for cost in costs)
    names = ", ".join(cost.name for cost in chosen)
    left = "" if needed - saved <= SHARE * free else "; it may still not fit, so use smaller batches with accumulate"
    return f"{begins}, so {names} compute theirs twice: {in_words(saved)} less, for {share:.0%} of the forward{left}"


def blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the parts of a model that are recomputed as one: its children, or the blocks of a child that lists them.

    Layers one by one would free nothing: the input of each is kept.
    """
    listed = blocks_of_lists(model)
    found: dict[str, nn.Module] = {}
    for name, child in model.named_children():
        own = {part: block for part, block in listed.items() if part.startswith(f"{name}.")}
        found |= own or {name: child}
    return {name: block for name, block in found.items() if any(True for _ in block.parameters())}


def _part_of_a_batch(trainer: AnyTrainer, source: AnySource) -> tuple[int, Batch]:
    size, recipe = trainer.recipe.batch_size, trainer.recipe
    rows = min(max(size // PART, 2), size, source.rows)
    if is_resident(source):
        return rows, source.gather(torch.arange(rows, device=source.device))
    order = order_of(source, recipe.seed, 0, torch.device("cpu"), recipe.shuffle)
    batch = next(iter(source.batches(order[:size], size, trainer.device, False)))  # type: ignore[union-attr]
    is_by_row = all(len(tensor) == len(batch[0]) for tensor in batch)
    return (rows, tuple(tensor[:rows] for tensor in batch)) if is_by_row else (size, batch)


def _measured(twin: AnyTrainer, batch: Batch, factor: float) -> tuple[int, list[BlockCost]]:
    """Run a forward; return the bytes that a whole batch keeps, and what each block has part in."""
    twin.model.train()
    weights = {weight.untyped_storage().data_ptr() for weight in twin.model.parameters()}
    kept = Kept(weights)
    parts = blocks(twin.model)
    with twin.precisely():
        twin.forward(batch)  # loads kernels
        with ExitStack() as stack:
            for name, block in parts.items():
                stack.enter_context(kept.within(name, block, twin.device))
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(kept.note, lambda tensor: tensor))
            twin.forward(batch)
    costs = [BlockCost(name, int(factor * kept.of(name)), kept.seconds[name] * factor) for name in kept.seconds]
    return int(factor * sum(kept.bytes.values())), costs


class Kept:
    """The memory that autograd keeps, by the block in whose forward it was kept first."""

    def __init__(self, known: set[int]) -> None:
        self.known, self.bytes, self.owner = known, dict[int, int](), dict[int, str | None]()
        self.inputs: dict[str, set[int]] = {}
        self.seconds: dict[str, float] = {}
        self.block: str | None = None

    def note(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.bytes.setdefault(storage.data_ptr(), storage.nbytes())
            self.owner.setdefault(storage.data_ptr(), self.block)
        return tensor

    def of(self, name: str) -> int:
        """Return what recomputing a block frees: what it keeps without its inputs, which are kept for that."""
        inputs = self.inputs[name]
        return sum(size for place, size in self.bytes.items() if self.owner[place] == name and place not in inputs)

    @contextmanager
    def within(self, name: str, block: nn.Module, device: torch.device) -> Iterator[None]:
        plain, own = block.forward, vars(block).get("forward")

        def forward(*args: Any, **kwargs: Any) -> Any:
            before, self.block = self.block, name
            given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            self.inputs.setdefault(name, set()).update(value.untyped_storage().data_ptr() for value in given)
            finish(device)  # host sync: this is a measurement, not a training
            started = time.perf_counter()
            try:
                return plain(*args, **kwargs)
            finally:
                finish(device)
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
                self.block = before

        block.forward = forward
        try:
            yield
        finally:
            if own is None:
                del block.forward
            else:
                block.forward = own


def _state_bytes(model: nn.Module) -> int:
    """Return the bytes that gradients and the two moments of Adam will take."""
    return 3 * sum(map(bytes_of, (weight for weight in model.parameters() if weight.requires_grad)))
