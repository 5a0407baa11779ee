"""Run the root under autocast and return float32 outputs; in fp16 the loss is scaled for the backward pass."""

from __future__ import annotations

import weakref
from typing import Any

from hotlap.catalog.autocast.choice import precision
from hotlap.catalog.autocast.hardware import FP16
from hotlap.catalog.autocast.hidden_scaler import HiddenScaler
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.site import Original, Site


def apply(site: Site) -> None:
    half = Half(site)
    site.ledger.wrap(site.torch.autocast, "__enter__", half.watched)
    site.before(site.seams.scaling, half.scaled_by_program)
    site.before(site.seams.stepping, half.optimizers.add)
    site.when_root(half.root_known)


class Half:
    def __init__(self, site: Site) -> None:
        self._site = site
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._own: str | None = None  # why not: what the program does itself
        self._roots: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # to dtypes
        self._scaling: HiddenScaler | None = None

    def watched(self, original: Original) -> Original:
        """Note whether the program uses autocast itself, also inside the root; removed once the root is known."""

        def __enter__(autocast: Any) -> Any:  # noqa: N807 it stands in for one
            if autocast._enabled:
                self._own = "the program uses autocast itself"
            return original(autocast)

        return __enter__

    def scaled_by_program(self, *_: Any) -> None:
        self._own = "the program scales its loss itself"
        if self._roots:
            self._site.withdraw(self._own)

    def root_known(self, root: Any) -> None:
        site = self._site
        site.ledger.release(site.torch.autocast, "__enter__")
        if self._own is not None:
            site.no_effect(self._own)
            return
        try:
            chosen = precision(site.torch, root, site.value, self.optimizers)
        except EntryDeclined as why:
            site.refused(str(why))
            return
        site.stand_in_for(root, self.call)
        self._roots[root] = site.torch.float16 if chosen == FP16 else site.torch.bfloat16
        if chosen == FP16:
            self._scale(root)
        site.applied(f"{chosen}, outputs in float32{', loss scaled' if chosen == FP16 else ''}")

    def _scale(self, root: Any) -> None:
        site = self._site
        if self._scaling is None:
            device = next(iter(root.parameters())).device
            scaling = self._scaling = HiddenScaler(site.torch, device, self.optimizers)
            site.stand_in(site.seams.backward, scaling.backward)
            site.before(site.seams.stepping, scaling.before_step)
            site.after(site.seams.stepping, lambda optimizer, _: scaling.after_step(optimizer))
            site.ledger.later(scaling.close)
            # Entries that heed a scaler, such as cuda-graphs, must know of this one.
            site.seams.scaled_step.before(None, (), {})
        self._scaling.covers(root)

    def call(self, original: Original, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        torch, dtype = self._site.torch, self._roots.get(module)
        device = None if dtype is None else next(iter(module.parameters())).device.type
        if device is None or torch.is_autocast_enabled(device):
            return original(*args, **kwargs)
        if self._scaling is not None:
            self._scaling.entered((args, kwargs))
        with torch.autocast(device, dtype=dtype):
            outcome = original(*args, **kwargs)
        return in_float32(torch, outcome)


def in_float32(torch: Any, outcome: Any) -> Any:
    """Return the outcome in the precision the program expects, so that its loss is computed in full precision."""
    from torch.utils._pytree import tree_map

    halves = (torch.float16, torch.bfloat16)

    def full(leaf: Any) -> Any:
        return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype in halves else leaf

    return tree_map(full, outcome)
