"""How torch computes during a training; every setting is restored when it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from hotlap.engine import processor
from hotlap.engine.errors import BadRecipe, NoDevice
from hotlap.engine.forwards import forwards_replaced
from hotlap.engine.recipe import Recipe
from hotlap.engine.snapshot import random_states

Buffer = tuple[dict[str, Any], str, torch.Tensor]  # where it is held, and under which name


def device_from(wanted: torch.device | str) -> torch.device:
    """Return the device; "auto" is the GPU if there is one."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except (RuntimeError, TypeError) as error:
        raise NoDevice(f'device={wanted!r} is not a device; use "cpu", "cuda", "cuda:1" or "auto"') from error
    if device.type not in ("cpu", "cuda"):
        raise NoDevice(f'device={str(wanted)!r}: the engine trains only on a CPU or a GPU; use "cpu" or "cuda"')
    if device.type == "cuda" and not torch.cuda.is_available():
        raise NoDevice(f'device={str(wanted)!r}, but torch sees no GPU; use device="cpu" or "auto"')
    return torch.device("cuda", torch.cuda.current_device()) if str(device) == "cuda" else device


@contextlib.contextmanager
def computing(recipe: Recipe) -> Iterator[None]:
    """Set TF32 and cuDNN's measured choice of convolutions on CUDA, oneDNN and threads on a CPU; restore them after."""
    way = processor.present()
    processor.use(processor.requested_way(recipe))
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("highest" if recipe.precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = recipe.precision != "fp32"
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before[1:]
        processor.use(way)


@contextlib.contextmanager
def recomputing(model: nn.Module, blocks: bool | str | tuple[str, ...], device: torch.device) -> Iterator[None]:
    """Let these blocks keep no activations: backward computes them again, with the same random numbers."""
    may_be_captured = device.type != "cpu"
    with forwards_replaced([(block, _recomputed(block, may_be_captured)) for block in blocks_of(model, blocks)]):
        yield


def blocks_of(model: nn.Module, blocks: bool | str | tuple[str, ...]) -> list[nn.Module]:
    if isinstance(blocks, bool):
        children = [child for child in model.children() if any(True for _ in child.parameters())]
        return children if blocks else []
    known = dict(model.named_modules())
    if missing := [name for name in blocks if name not in known]:
        raise BadRecipe(
            f"activation_checkpointing names {missing[0]!r}, which the model does not have; "
            "use names from model.named_modules()"
        )
    return [known[name] for name in blocks]


def _recomputed(block: nn.Module, may_be_captured: bool) -> Callable[..., Any]:
    """Recompute a block in the backward pass.

    Random streams cannot be restored inside a graph: there a block that drew nothing at its first call does without.
    """
    plain = block.forward
    draws = None if may_be_captured else True

    def contexts() -> tuple[Any, Any]:
        return contextlib.nullcontext(), _again(block, _moving_buffers(block))

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal draws
        if not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        before = random_states() if draws is None else None
        keeps = draws is not False
        found = checkpoint(plain, *args, use_reentrant=False, preserve_rng_state=keeps, context_fn=contexts, **kwargs)
        if before is not None:
            draws = not same_device_streams(before, random_states())
        return found

    return forward


def _moving_buffers(block: nn.Module) -> list[Buffer]:
    """Copy the buffers that a first forward may advance, such as a carried state or the vectors of a spectral norm."""
    holders = [module._buffers for module in block.modules() if not isinstance(module, _NormBase)]
    return [
        (held, name, buffer.detach().clone()) for held in holders for name, buffer in held.items() if buffer is not None
    ]


@contextlib.contextmanager
def _again(block: nn.Module, before: list[Buffer]) -> Iterator[None]:
    """Start the second forward of a step from the buffers of the first, and leave no trace of it."""
    after = [(held, name, held[name]) for held, name, _ in before]
    for held, name, buffer in before:
        held[name] = buffer
    try:
        with _statistics_untouched(block):
            yield
    finally:
        for held, name, now in after:
            held[name] = now


@contextlib.contextmanager
def _statistics_untouched(block: nn.Module) -> Iterator[None]:
    """The second forward of a step must not count in running statistics again."""
    norms = [module for module in block.modules() if isinstance(module, _NormBase)]
    before = [(module, module.momentum, module.num_batches_tracked) for module in norms]
    counts = [None if count is None else count.clone() for _, _, count in before]
    for norm in norms:
        norm.momentum = 0.0  # running · 1 + batch · 0: exact
    try:
        yield
    finally:
        for (norm, momentum, count), saved in zip(before, counts, strict=True):
            norm.momentum = momentum
            if count is not None and saved is not None:
                count.copy_(saved)


def same_device_streams(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return all(torch.equal(before[name], after[name]) for name in ("torch", "cuda") if name in before)
