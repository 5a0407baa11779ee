"""Wraps the calls of repeated blocks in torch.utils.checkpoint, on their class, so that nothing is left in a pickle."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from hotlap.catalog.activation_checkpointing.blocks import repeated
from hotlap.catalog.rehearsal import Rehearsed, compiled, hooked, own_buffers, parallel, rehearse
from hotlap.catalog.site import Original, Site

SHORT = 0.15  # of the device's memory free after the first steps


def apply(site: Site) -> None:
    site.when_root(lambda root: _consider(site, root))


def _consider(site: Site, root: Any) -> None:
    blocks = repeated(site.torch, root)
    if not blocks:
        site.no_effect("the model has no container of two or more blocks of one class")
        return
    why = _enough_memory(site, root)
    if why is not None:
        site.no_effect(why)
    elif (reason := _why_not(site, root)) is not None:
        site.refused(reason)
    else:
        site.stand_in(site.seams.calling, Checkpoints(site, root, blocks).call)


def _enough_memory(site: Site, root: Any) -> str | None:
    if site.value == "always":
        return None
    device = next(iter(root.parameters())).device
    if device.type != "cuda":
        return "memory is looked at on a GPU only; to have it anyway: activation-checkpointing=always"
    free, total = site.torch.cuda.mem_get_info(device)
    return None if is_short(free, total) else f"{free / total:.0%} of the GPU's memory is free"


def is_short(free: int, total: int) -> bool:
    return free < SHORT * total


def _why_not(site: Site, root: Any) -> str | None:
    if compiled(root):
        return "the model is compiled, which decides by itself what to keep"
    if hooked(site.torch, root):
        return "hooks in the model would be called twice"
    if (name := parallel(root)) not in (None, "DistributedDataParallel"):
        return f"nothing can be tried inside {name}"
    return None


class Checkpoints:
    def __init__(self, site: Site, root: Any, blocks: list[Any]) -> None:
        self._site, self._root = site, weakref.ref(root)
        self._blocks: weakref.WeakSet[Any] = weakref.WeakSet(blocks)
        self._classes = {type(one) for one in blocks}
        self._on = False
        self._tried = False

    def call(self, original: Original, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Only the first training call has anything to do here."""
        ours = module is not None and module is self._root()
        trains = ours and module.training and self._site.torch.is_grad_enabled()
        if trains and not self._tried:
            self._tried = True
            self._try(module, args, kwargs)
        return original(*args, **kwargs)

    def _try(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for kind in self._classes:
            self._site.ledger.wrap(kind, "__call__", self._layer)
        again = self._rehearsed(module, args, kwargs, on=True)
        plain = self._rehearsed(module, args, kwargs, on=False)
        if again is None or again.kept:
            self._leave("a block could not be computed a second time from its input")
        elif plain is not None and not plain.equals(again):
            self._leave("computing a block again gives different bits")
        else:
            self._on = True
            proof = "gradients bit-equal on a batch" if plain else "too little memory to compare gradients"
            self._site.applied(f"{len(self._blocks)} blocks, {proof}")

    def _leave(self, why: str) -> None:
        for kind in self._classes:
            self._site.ledger.release(kind, "__call__")
        self._site.refused(why)

    def _rehearsed(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on: bool) -> Rehearsed | None:
        before, self._on = self._on, on
        try:
            return rehearse(self._site.torch, module, args, kwargs)
        except RuntimeError:  # also torch's CheckpointError and OutOfMemoryError
            return None
        finally:
            self._on = before

    def _layer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(block: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 it stands in for one
            if not self._on or not block.training or block not in self._blocks or not self._grads():
                return original(block, *args, **kwargs)
            return self._checkpointed(functools.partial(original, block, **kwargs), block, args)

        return __call__

    def _grads(self) -> bool:
        return bool(self._site.torch.is_grad_enabled())

    def _checkpointed(self, call: Callable[..., Any], block: Any, args: tuple[Any, ...]) -> Any:
        from torch.utils.checkpoint import checkpoint

        return checkpoint(
            call,
            *args,
            use_reentrant=False,
            preserve_rng_state=True,
            # Copies stand in for its buffers the second time: running statistics move once a step, not twice.
            context_fn=lambda: (nullcontext(), own_buffers(block)),
        )
