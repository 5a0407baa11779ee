"""Tries activations in place on the root's own input and keeps those that give the same bits.

`inplace` is switched on for the time of a training call only: it is an attribute that gets pickled with the model.
"""

from __future__ import annotations

from typing import Any

from hotlap.catalog.inplace_activations.proof import Proof
from hotlap.catalog.rehearsal import compiled, hooked, parallel, signature
from hotlap.catalog.site import Original, Site

# Those whose gradient torch computes from the result. The others keep a copy of their input: nothing is saved.
CANDIDATES = ("ReLU", "LeakyReLU", "ELU", "CELU", "SELU")
GRAPHS = "cuda-graphs"
MOST_SIGNATURES = 3  # each is proven anew


def apply(site: Site) -> None:
    site.when_root(lambda root: _consider(site, root))


def _consider(site: Site, root: Any) -> None:
    classes = tuple(getattr(site.torch.nn, name) for name in CANDIDATES)
    plain = [one for one in root.modules() if type(one) in classes and not one.inplace]
    if not plain:
        site.no_effect("the model has no activation modules that could work in place")
        return
    if GRAPHS in site.alongside and any(one.is_cuda for one in root.parameters()):
        site.no_effect(f"{GRAPHS} replays the model, where it saves no time and would cost the host some in every step")
        return
    why = _why_not(site, root)
    if why is not None:
        site.refused(why)
        return
    site.stand_in_for(root, Switch(site, plain).call)


def _why_not(site: Site, root: Any) -> str | None:
    if compiled(root):
        return "the model is compiled, which does this by itself"
    if hooked(site.torch, root):
        return "hooks in the model may look at what would be overwritten"
    if (name := parallel(root)) not in (None, "DistributedDataParallel"):
        return f"nothing can be proven about a model inside {name}"
    return None


class Switch:
    def __init__(self, site: Site, candidates: list[Any]) -> None:
        self._site, self._candidates = site, candidates
        self._proven: dict[Any, list[Any]] = {}  # by signature of the input

    def call(self, original: Original, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not module.training or not self._site.torch.is_grad_enabled() or hooked(self._site.torch, module):
            return original(*args, **kwargs)
        chosen = self._chosen(module, args, kwargs)
        for one in chosen:
            one.__dict__["inplace"] = True
        try:
            return original(*args, **kwargs)
        finally:
            for one in chosen:
                one.__dict__["inplace"] = False

    def _chosen(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        key = signature(self._site.torch, args, kwargs)
        known = self._proven.get(key)
        if known is None and len(self._proven) < MOST_SIGNATURES:
            known = self._proven[key] = self._prove(module, args, kwargs)
        return known or []

    def _prove(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        proof = Proof(self._site.torch, module, args, kwargs)
        chosen = proof.of(self._candidates)
        if chosen:
            self._site.applied(f"{len(chosen)} of {len(self._candidates)} activations, proven bit-equal on a batch")
        else:
            self._site.refused(proof.why)
        return chosen
