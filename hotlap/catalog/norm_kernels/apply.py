"""Runs the nn.BatchNorm2d layers of each root with hotlap.kernels.norms, fused with a directly following activation.

The layers do not change: class, parameters and state_dict are torch's. Only calls of their forward come through here;
an activation whose input its normalisation has just activated returns it unchanged. That happens only while the module
containing both runs: called separately, each layer computes its own result.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from hotlap.loading.identity import ByIdentity
from hotlap.runtime.site import Instead, Original, Site

LARGE = 1 << 22  # elements: below it our launches take the host longer than the device
OF_ALL = tuple(f"_global_{name}_hooks" for name in ("forward", "forward_pre", "backward", "backward_pre"))
PATIENCE = 40  # calls of a layer by which CUDA graphs should have taken over


def apply(site: Site) -> None:
    site.when_root(ReplacedNorms(site).known)


class Layer:
    """A normalisation whose calls are replaced, and the activation after it, if any."""

    def __init__(self, kind: str = "none", pair: Any = None) -> None:
        self.kind = kind  # of activation, as in norm.cu
        if pair is not None:
            self.names = (pair.norm, pair.activation)
            self.both = (weakref.ref(pair.layer), weakref.ref(pair.behind))
            self.order = list(pair.parent._modules)

    def is_in(self, parent: Any) -> bool:
        """Return whether both are still in their places in `parent`, unmodified and without hooks."""
        from hotlap.kernels.norms.pairs import is_watched

        found = [parent._modules.get(name) for name in self.names]
        if any(module is None or module is not held() for module, held in zip(found, self.both, strict=True)):
            return False
        return list(parent._modules) == self.order and not any(map(is_watched, found))


class ReplacedNorms:
    """The layers whose calls are replaced, and the activations after them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._layers: ByIdentity[Layer] = ByIdentity()
        self._activations: ByIdentity[bool] = ByIdentity()
        self._parents: ByIdentity[list[Layer]] = ByIdentity()
        self._activated: ByIdentity[bool] = ByIdentity()  # tensors on their way to the activation
        self._thread = threading.local()  # running: layers of the current parent whose activation is fused
        self._small = self._counted = 0  # calls of small layers by the host, so far and before this step
        self._is_large = False  # whether some layer is large
        self._replaced: set[Any] = set()

    def known(self, root: Any) -> None:
        nn, site = self._site.torch.nn, self._site
        layers = [module for module in root.modules() if type(module) is nn.BatchNorm2d]
        taken = [module for module in layers if on_gpu(module)]
        if not taken:
            site.no_effect("its BatchNorm2d layers are not on a GPU" if layers else "the model has no BatchNorm2d")
            return
        from hotlap.kernels.norms.pairs import pairs

        if not self._replaced:
            site.before(site.seams.stepping, self._stepping)
        for module in taken:
            self._layers.put(module, Layer())
        found = [pair for pair in pairs(root) if pair.layer in self._layers]
        for pair in found:
            layer = Layer(pair.kind, pair)
            self._layers.put(pair.layer, layer)
            self._activations.put(pair.behind, True)
            self._parents.put(pair.parent, [*(self._parents.get(pair.parent) or ()), layer])
        for held in (self._layers, self._activations, self._parents):
            site.ledger.later(held.clear)
        self._replace(nn.modules.batchnorm._BatchNorm, self._normalise, self._layers)
        for kind in {type(pair.behind) for pair in found}:
            self._replace(kind, self._activate, self._activations)
        for kind in {type(pair.parent) for pair in found}:
            self._replace(kind, self._run, self._parents)
        site.applied(f"{len(taken)} batch normalisations, {len(found)} of them with the activation that follows")

    def _replace(self, kind: Any, instead: Instead, concerned: ByIdentity[Any]) -> None:
        if kind not in self._replaced:
            self._replaced.add(kind)
            self._site.replace(kind, "forward", instead, concerned.__contains__)

    def _run(self, original: Original, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hooks, layers = self._site.torch.nn.modules.module, []
        if not any(getattr(hooks, name) for name in OF_ALL):
            layers = [layer for layer in self._parents.get(module) or () if layer.is_in(module)]
        before = getattr(self._thread, "running", ())
        self._thread.running = layers
        try:
            return original(*args, **kwargs)
        finally:
            self._thread.running = before

    def _normalise(self, original: Original, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        layer = self._layers.get(module)
        if layer is None or kwargs or len(args) != 1 or not module.training or not self._pays(args[0]):
            return original(*args, **kwargs)
        from hotlap.kernels.norms.layer import by_kernels, plan_for

        kind = layer.kind if layer in getattr(self._thread, "running", ()) else "none"
        plan = plan_for(module, args[0], kind)
        if plan is None:
            return original(*args, **kwargs)
        made = by_kernels(plan, module, args[0])
        if kind != "none":
            self._activated.put(made, True)
        return made

    def _activate(self, original: Original, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) == 1 and not kwargs and args[0] in self._activated:
            self._activated.drop(args[0])
            return args[0]
        return original(*args, **kwargs)

    def _pays(self, x: Any) -> bool:
        """Return whether the kernels pay: small layers only with CUDA graphs, and not once those fail to appear.

        It must not depend on whether a graph is being captured: captured results are compared with eager ones.
        """
        torch = self._site.torch
        if type(x) is not torch.Tensor or torch.jit.is_tracing():
            return False
        if x.numel() >= LARGE:
            self._is_large = True
            return True
        self._small += 1
        return self._is_patient and "cuda-graphs" in self._site.alongside

    @property
    def _is_patient(self) -> bool:
        """Constant during a step: what is recomputed must match what was computed."""
        return self._counted <= PATIENCE * len(self._layers)

    def _stepping(self, optimizer: Any) -> None:
        if self._small == self._counted:  # a replay
            self._small = 0
        self._counted = self._small
        if self._layers and not self._is_patient and not self._is_large:
            self._site.withdraw("all its layers are small, and no CUDA graph saves the host their launches")


def on_gpu(layer: Any) -> bool:
    return layer.weight is not None and bool(layer.weight.is_cuda)
