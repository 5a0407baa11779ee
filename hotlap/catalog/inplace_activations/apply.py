"""Let activations overwrite their input where nothing else can see it: after a layer in a plain nn.Sequential.

A linear layer, a convolution or a normalisation returns new memory, and a Sequential passes it to the next layer alone.
`inplace` is switched on only during the Sequential's own call: the attribute is pickled with the model, and code that
calls the layers one by one may keep what each of them returns.
"""

from __future__ import annotations

import weakref
from collections import Counter
from inspect import unwrap
from itertools import pairwise
from typing import Any

from hotlap.loading.identity import ByIdentity
from hotlap.loading.outside_profiles import has_modes
from hotlap.runtime.rehearsal import HOOKS, compiled, parallel
from hotlap.runtime.site import Original, Site

# These layers return new memory, which they do not read in their backward pass.
FRESH = (
    "Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LayerNorm", "GroupNorm",
)  # fmt: skip
# The gradient of these comes from their result, with the same bits; that of others comes from their input.
ACTIVATIONS = ("ReLU", "LeakyReLU")
OF_ALL = tuple(f"_global_{name}_hooks" for name in ("forward", "forward_pre", "backward", "backward_pre"))
GRAPHS = "cuda-graphs"


def apply(site: Site) -> None:
    site.when_root(InPlace(site).known)


class InPlace:
    """The Sequentials whose activations work in place, each with its layers as they were found."""

    def __init__(self, site: Site) -> None:
        self._site, self._torch = site, site.torch
        self._found: ByIdentity[Found] = ByIdentity()
        self._replaced = False

    def known(self, root: Any) -> None:
        site, sequentials = self._site, self._sequentials(root)
        if not sequentials:
            site.no_effect(
                "no activation directly follows a layer in an nn.Sequential, where nobody else sees its input"
            )
        elif GRAPHS in site.alongside and any(parameter.is_cuda for parameter in root.parameters()):
            site.no_effect(
                f"{GRAPHS} replays the model, so this would save no time and cost some on the host in every step"
            )
        elif compiled(root):
            site.refused("the model is compiled, which does this by itself")
        elif (name := parallel(root)) not in (None, "DistributedDataParallel"):
            site.refused(f"nothing is known about a model inside {name}")
        else:
            for sequential, found in sequentials:
                self._found.put(sequential, found)
            self._begin()
            count = sum(len(found.activations) for _, found in sequentials)
            site.applied(f"{count} activation{'' if count == 1 else 's'} directly after layers")

    def _begin(self) -> None:
        if not self._replaced:
            self._replaced = True
            self._site.ledger.later(self._found.clear)
            self._site.replace(self._torch.nn.Sequential, "forward", self._called, self._found.__contains__)

    def _sequentials(self, root: Any) -> list[tuple[Any, Found]]:
        nn = self._torch.nn
        modules = list(root.modules())
        users = Counter(id(child) for module in modules for child in module._modules.values())
        plain = unwrap(nn.Sequential.forward)
        found = []
        for module in modules:
            if "forward" not in vars(module) and unwrap(type(module).forward) is plain:
                # A dropout returns new memory, or its input: either way nothing else has it.
                layers = [layer for layer in module._modules.values() if type(layer) is not nn.Dropout]
                chosen = [behind for layer, behind in pairwise(layers) if self._may(layer, behind)]
                chosen = [behind for behind in chosen if users[id(behind)] == 1]
                if chosen:
                    found.append((module, Found(module, chosen)))
        return found

    def _may(self, layer: Any, behind: Any) -> bool:
        nn = self._torch.nn
        return (
            type(layer) in [getattr(nn, name) for name in FRESH]
            and type(behind) in [getattr(nn, name) for name in ACTIVATIONS]
            and not behind.inplace
            and getattr(behind, "negative_slope", 0.0) >= 0.0
        )

    def _called(self, original: Original, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = self._found.get(module)
        if found is None or not module.training or not self._torch.is_grad_enabled() or not self._is_unseen(found):
            return original(*args, **kwargs)
        activations = [activation for activation in (held() for held in found.activations) if activation is not None]
        for activation in activations:
            activation.__dict__["inplace"] = True
        try:
            return original(*args, **kwargs)
        finally:
            for activation in activations:
                activation.__dict__["inplace"] = False

    def _is_unseen(self, found: Found) -> bool:
        """Whether the layers are unchanged, and no hook or mode sees what passes between them, nor a trace."""
        hooks = self._torch.nn.modules.module
        seen = any(getattr(hooks, name) for name in OF_ALL) or has_modes(self._torch) or self._torch.jit.is_tracing()
        return found.holds() and not seen


class Found:
    """The layers of a Sequential as they were found, for comparison."""

    def __init__(self, sequential: Any, activations: list[Any]) -> None:
        self._modules: dict[str, Any] = sequential._modules
        self._layers = [weakref.ref(layer) for layer in self._modules.values()]
        self.activations = [weakref.ref(activation) for activation in activations]

    def holds(self) -> bool:
        layers = list(self._modules.values())
        return (
            len(layers) == len(self._layers)
            and all([layer is held() for layer, held in zip(layers, self._layers, strict=True)])  # noqa: C419 a list is faster
            and not any([vars(layer)[name] for layer in layers for name in HOOKS])  # noqa: C419
            and not any(["forward" in vars(layer) for layer in layers])  # noqa: C419
            and all([getattr(held(), "negative_slope", 0.0) >= 0.0 for held in self.activations])  # noqa: C419
        )
