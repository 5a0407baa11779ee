"""Runs the nn.BatchNorm2d layers of each root by hotlap.engine.norms, with the activation where one directly follows.

The layers stay as they are: class, parameters and state_dict are torch's. Only calls of their forward pass through
here; an activation that is given what its normalisation has just activated gives it back as it is.
"""

from __future__ import annotations

import weakref
from typing import Any

from hotlap.catalog.identity import ByIdentity
from hotlap.catalog.rehearsal import HOOKS
from hotlap.catalog.site import Instead, Original, Site

LARGE = 1 << 22  # elements: below it the host takes longer for our launches than the device
PATIENCE = 40  # calls of a layer in which CUDA graphs should have taken over


def apply(site: Site) -> None:
    site.when_root(Taken(site).known)


class Layer:
    """What is known of a normalisation."""

    def __init__(self, kind: str, activation: Any = None) -> None:
        self.kind = kind  # of the activation, as in norm.cu
        self.activation = (lambda: None) if activation is None else weakref.ref(activation)
        self.made: Any = lambda: None  # what it has just activated
        self.within = 0  # calls under way of the module in which the activation follows


class Taken:
    """The layers whose calls are ours, and the activations behind them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._layers: ByIdentity[Layer] = ByIdentity()
        self._activations: ByIdentity[Layer] = ByIdentity()
        self._parents: ByIdentity[list[Layer]] = ByIdentity()
        self._small = 0  # calls of small layers by the host
        self._replaced: set[Any] = set()

    def known(self, root: Any) -> None:
        nn, site = self._site.torch.nn, self._site
        layers = [one for one in root.modules() if type(one) is nn.BatchNorm2d]
        taken = [one for one in layers if on_gpu(one)]
        if not taken:
            site.no_effect("its batch normalisations are not on a GPU" if layers else "the model has no BatchNorm2d")
            return
        from hotlap.engine.norms.pairs import pairs

        for one in taken:
            self._layers.put(one, Layer("none"))
        found = [one for one in pairs(root) if one.layer in self._layers]
        for pair in found:
            layer = Layer(pair.kind, pair.behind)
            self._layers.put(pair.layer, layer)
            self._activations.put(pair.behind, layer)
            self._parents.put(pair.parent, [*(self._parents.get(pair.parent) or ()), layer])
        for held in (self._layers, self._activations, self._parents):
            site.ledger.later(held.clear)
        self._replace(nn.modules.batchnorm._BatchNorm, self._normalise, self._layers)
        for kind in {type(one.behind) for one in found}:
            self._replace(kind, self._activate, self._activations)
        for kind in {type(one.parent) for one in found}:
            self._replace(kind, self._run, self._parents)
        site.applied(f"{len(taken)} batch normalisations, {len(found)} with the activation behind them")

    def _replace(self, kind: Any, instead: Instead, concerned: ByIdentity[Any]) -> None:
        if kind not in self._replaced:
            self._replaced.add(kind)
            self._site.replace(kind, "forward", instead, concerned.__contains__)

    def _run(self, original: Original, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        layers = self._parents.get(module) or ()
        for one in layers:
            one.within += 1
        try:
            return original(*args, **kwargs)
        finally:
            for one in layers:
                one.within -= 1

    def _normalise(self, original: Original, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        layer = self._layers.get(module)
        if layer is None or kwargs or len(args) != 1 or not module.training or not self._pays(args[0]):
            return original(*args, **kwargs)
        from hotlap.engine.norms.layer import by_kernels, plan_for

        is_unseen = layer.within and self._is_unseen(module) and self._is_unseen(layer.activation())
        kind = layer.kind if is_unseen else "none"
        plan = plan_for(module, args[0], kind)
        if plan is None:
            return original(*args, **kwargs)
        made = by_kernels(plan, module, args[0])
        if kind != "none":
            layer.made = weakref.ref(made)
        return made

    def _activate(self, original: Original, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        layer = self._activations.get(module)
        if layer is not None and len(args) == 1 and not kwargs and layer.made() is args[0]:
            layer.made = lambda: None
            return args[0]
        return original(*args, **kwargs)

    def _pays(self, x: Any) -> bool:
        """Small layers only where CUDA graphs spare the host its launches; and from when they have not come, no more.

        It must not depend on whether a graph is being captured: what is captured is compared with what is not.
        """
        torch = self._site.torch
        if type(x) is not torch.Tensor or torch.jit.is_tracing():
            return False
        if x.numel() >= LARGE:
            return True
        if "cuda-graphs" not in self._site.alongside or self._small > PATIENCE * len(self._layers):
            return False
        self._small += 1
        return True

    def _is_unseen(self, module: Any) -> bool:
        """Nobody looks at what comes out of it."""
        hooked = module is not None and any(getattr(module, name) for name in HOOKS)
        return not hooked and not self._site.torch.nn.modules.module._has_any_global_hook()


def on_gpu(layer: Any) -> bool:
    return layer.weight is not None and bool(layer.weight.is_cuda)
