"""Wrap the calls of repeated blocks in torch.utils.checkpoint, on their class, so that nothing is left in a pickle."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from hotlap.runtime.attributes import Attributes
from hotlap.runtime.forward_reads import Readings
from hotlap.runtime.host_streams import HostStreams
from hotlap.runtime.rehearsal import RehearsalResult, compiled, hooked, own_buffers, parallel, rehearse
from hotlap.runtime.site import Original, Site

SHORT = 0.15  # share of the device's memory that is free after the first steps


def apply(site: Site) -> None:
    blocks = Blocks(site)
    site.when_root(lambda root: _consider(site, root, blocks))


def _consider(site: Site, root: Any, all_blocks: Blocks) -> None:
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
        site.stand_in_for(root, FirstCall(all_blocks, blocks).call)


def repeated(torch: Any, root: Any) -> list[Any]:
    """Return the outermost blocks of one class in a container; blocks inside a block are computed again with it."""
    found: list[Any] = []
    _collect(torch, root, found)
    return found


def _collect(torch: Any, module: Any, found: list[Any]) -> None:
    children = [child for child in module.children() if any(True for _ in child.parameters())]
    count = Counter(type(child) for child in children if any(True for _ in child.children()))
    container = isinstance(module, torch.nn.Sequential | torch.nn.ModuleList)
    for child in children:
        if container and count[type(child)] >= 2:
            found.append(child)
        else:
            _collect(torch, child, found)


def _enough_memory(site: Site, root: Any) -> str | None:
    if site.value == "always":
        return None
    device = next(iter(root.parameters())).device
    if device.type != "cuda":
        return "memory is checked on a GPU only; to use it anyway: activation-checkpointing=always"
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
    readings = Readings(site.torch, root)
    if readings.generators:
        return "the model has random streams of its own, which would advance when a block is computed again"
    effect = readings.outside or readings.leaves
    return None if effect is None else f"{effect}, which a second computation would repeat"


class FirstCall:
    """Tries the blocks of one root in its first training call."""

    def __init__(self, all_blocks: Blocks, blocks: list[Any]) -> None:
        self._site, self._all = all_blocks.site, all_blocks
        self._blocks: weakref.WeakSet[Any] = weakref.WeakSet(blocks)
        self._tried = False

    def call(self, original: Original, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._tried and module.training and self._site.torch.is_grad_enabled():
            self._tried = True
            self._try(module, args, kwargs)
        return original(*args, **kwargs)

    def _try(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._all.add(self._blocks)
        again = self._rehearsed(module, args, kwargs)
        self._all.remove(self._blocks)
        plain = self._rehearsed(module, args, kwargs)
        if again is None or again.kept:
            self._site.refused("a block could not be computed a second time from its input")
        elif plain is not None and not plain.equals(again):
            self._site.refused("computing a block again gives different bits")
        else:
            self._all.add(self._blocks)
            proof = "gradients bit-equal on a batch" if plain else "too little memory to compare gradients"
            self._site.applied(f"{len(self._blocks)} blocks, {proof}")

    def _rehearsed(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RehearsalResult | None:
        try:
            return rehearse(self._site.torch, module, args, kwargs)
        except RuntimeError:  # also torch's CheckpointError and OutOfMemoryError
            return None


class Blocks:
    """The checkpointed blocks of all roots. A class is wrapped once, and only while it has such blocks."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._on: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, blocks: Iterable[Any]) -> None:
        self._on.update(blocks)
        for kind in {type(block) for block in self._on}:
            if not self.site.ledger.holds(kind, "__call__"):
                self.site.ledger.wrap(kind, "__call__", self._layer)

    def remove(self, blocks: Iterable[Any]) -> None:
        self._on.difference_update(blocks)
        for kind in {type(block) for block in blocks} - {type(block) for block in self._on}:
            self.site.ledger.release(kind, "__call__")

    def _layer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(block: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 it stands in for one
            if not block.training or block not in self._on or not self.site.torch.is_grad_enabled():
                return original(block, *args, **kwargs)
            return _checkpointed(functools.partial(original, block, **kwargs), block, args)

        return __call__


def _checkpointed(call: Callable[..., Any], block: Any, args: tuple[Any, ...]) -> Any:
    from torch.utils.checkpoint import checkpoint

    streams = HostStreams()
    return checkpoint(
        call,
        *args,
        use_reentrant=False,
        preserve_rng_state=True,
        # Copies stand in for its buffers the second time: running statistics move once a step, not twice.
        context_fn=lambda: (nullcontext(), _second_time(block, streams)),
    )


@contextmanager
def _second_time(block: Any, streams: HostStreams) -> Iterator[None]:
    held = [Attributes(module) for module in block.modules()]
    try:
        with own_buffers(block), streams.as_they_were():
            yield
    finally:
        for attributes in held:
            attributes.restore()
