"""Switch optimizers to their fused form for the duration of each step, as long as that form can handle them."""

from __future__ import annotations

import sys
from typing import Any

from hotlap.catalog.fused_optimizer.proof import Proof, is_due
from hotlap.catalog.fused_optimizer.tensors import (
    TensorSnapshot,
    begin_late_momenta,
    is_laid_out_anew,
    mark_as_written,
    why_not_tensors,
)
from hotlap.catalog.fused_optimizer.user_settings import UserSettings, separate
from hotlap.loading.identity import ByIdentity
from hotlap.patch.dynamo import keep_out
from hotlap.patch.ledger import Ledger
from hotlap.runtime.site import Original, Site

FIRST, EVERY = 3, 100  # steps at which an optimizer's tensors are checked: a walk over all of them
SGD = "torch.optim.sgd"


def apply(site: Site) -> None:
    fused = FusedOptimizers(site)
    site.before(site.seams.stepping, fused.step_begins)
    site.after(site.seams.stepping, fused.step_ends)


class FusedOptimizers:
    """The optimizers that step fused, each with the user's own settings."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._switched: ByIdentity[UserSettings] = ByIdentity()
        self._proofs: ByIdentity[Proof] = ByIdentity()  # of a step in progress
        self._seen: ByIdentity[TensorSnapshot] = ByIdentity()
        self._is_patched = False

    def step_begins(self, optimizer: Any) -> None:
        chosen = self._switched.get(optimizer)
        if chosen is None:
            if self._site.first_sight(optimizer):
                self._consider(optimizer)
            return
        chosen.steps += 1
        if self._is_unfit(optimizer, chosen) or not begin_late_momenta(optimizer):
            self._release(optimizer)
        else:
            self._begin(optimizer, chosen)

    def _is_unfit(self, optimizer: Any, chosen: UserSettings) -> bool:
        if optimizer._optimizer_step_pre_hooks:
            return True
        seen = self._seen.get(optimizer)
        if chosen.steps > FIRST and chosen.steps % EVERY and seen is not None and seen.holds(optimizer):
            return is_laid_out_anew(optimizer)
        if why_not_tensors(optimizer) is not None:
            return True
        if chosen.steps > 2:  # its state exists by now
            self._seen.put(optimizer, TensorSnapshot(optimizer))
        return False

    def _begin(self, optimizer: Any, chosen: UserSettings) -> None:
        if is_due(chosen.steps):
            self._proofs.put(optimizer, Proof(self._site.torch, optimizer, chosen.own))
        chosen.step_begins(optimizer)

    def step_ends(self, optimizer: Any, _: Any) -> None:
        chosen = self._switched.get(optimizer)
        if chosen is None:
            return
        chosen.step_ends()
        mark_as_written(self._site.torch, optimizer)
        proof = self._proofs.get(optimizer) if len(self._proofs) else None
        if proof is not None:
            self._proofs.drop(optimizer)
            if (why := proof.difference()) is not None:
                self._site.differs(f"{type(optimizer).__name__}: {why}")

    def _consider(self, optimizer: Any) -> None:
        name = type(optimizer).__name__
        if (why := _why_not(optimizer)) is not None:
            self._site.no_effect(f"{name}: {why}")
        elif (why := why_not_tensors(optimizer)) is not None:
            self._site.refused(f"{name}: {why}")
        else:
            self._patch_optimizers()
            chosen = UserSettings(optimizer)
            self._switched.put(optimizer, chosen)
            self._begin(optimizer, chosen)
            tensors = sum(len(group["params"]) for group in optimizer.param_groups)
            self._site.applied(f"{name} over {tensors} tensors")

    def _release(self, optimizer: Any) -> None:
        chosen = self._switched.get(optimizer)
        if chosen is not None:
            self._switched.drop(optimizer)
            chosen.put_back(optimizer)

    def _release_all(self) -> None:
        for optimizer in list(self._switched.things()):
            self._release(optimizer)

    def _patch_optimizers(self) -> None:
        """Install the patches once, when the first optimizer is switched."""
        if self._is_patched:
            return
        self._is_patched = True
        site, optimizers = self._site, self._site.torch.optim.Optimizer
        site.ledger.later(self._release_all)
        site.replace(optimizers, "state_dict", self._saved, concerns=self._switched.__contains__)
        site.replace(optimizers, "load_state_dict", self._loaded, concerns=self._switched.__contains__)
        site.replace(optimizers, "__getstate__", self._copied, concerns=self._switched.__contains__)
        self._patch_sgd()

    def _saved(self, original: Original, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outcome, chosen = original(*args, **kwargs), self._switched.get(optimizer)
        return outcome if chosen is None else chosen.as_saved(outcome)

    def _loaded(self, original: Original, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outcome, chosen = original(*args, **kwargs), self._switched.get(optimizer)
        if chosen is not None:
            chosen.loaded(optimizer)
        return outcome

    def _copied(self, original: Original, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give a copy or a pickle the settings with which the program made the optimizer."""
        outcome, chosen = original(*args, **kwargs), self._switched.get(optimizer)
        return outcome if chosen is None else chosen.as_saved(separate(outcome))

    def _patch_sgd(self) -> None:
        """Fall back where fused SGD raises: if a gradient is sparse, or if some parameters have their first gradient
        later than others. If a closure computes them, that is known only within the step.

        The patch is on a function of a module, so it is removed for good when Dynamo compiles; the entry stays on.
        """
        module, ledger = sys.modules[SGD], Ledger()

        def layer(original: Original) -> Original:
            def _fused_sgd(*args: Any, **kwargs: Any) -> Any:
                if kwargs.get("has_sparse_grad") and (optimizer := self._owner(args[0])) is not None:
                    self._release(optimizer)
                    return module._single_tensor_sgd(*args, **kwargs)
                try:
                    return original(*args, **kwargs)
                except TypeError:
                    if not _lacks_buffers(*args[:3]) or self._owner(args[0]) is None:
                        raise
                return module._single_tensor_sgd(*args, **kwargs)

            return _fused_sgd

        ledger.wrap(module, "_fused_sgd", layer)
        keep_out(ledger, for_good=True)
        self._site.ledger.later(ledger.close)

    def _owner(self, parameters: list[Any]) -> Any:
        """Return the switched optimizer that has these parameters of one group, or None."""
        for optimizer in self._switched.things():
            if any(parameter is parameters[0] for group in optimizer.param_groups for parameter in group["params"]):
                return optimizer
        return None


def _lacks_buffers(parameters: list[Any], gradients: list[Any], momenta: list[Any]) -> bool:
    """Whether a momentum is missing and all tensors would go to one kernel, so that none has been updated yet."""
    kinds = {(tensor.device, tensor.dtype) for tensor in (*parameters, *gradients)}
    return len(kinds) == 1 and any(momentum is None for momentum in momenta)


def _why_not(optimizer: Any) -> str | None:
    groups = optimizer.param_groups
    if not all("fused" in group for group in groups):
        return "has no fused form"
    if all(group["fused"] for group in groups):
        return "is fused already"
    if any(group.get("differentiable") for group in groups):
        return "must stay differentiable"
    if optimizer._optimizer_step_pre_hooks:
        return "has hooks before its step, which may change gradients"
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    if "cpu" in devices and any(group.get("capturable") for group in groups):
        return "is capturable, which torch refuses on the host"
    if devices != {"cpu"} and any(kind.__name__ == "Adagrad" for kind in type(optimizer).__mro__):
        return "has a fused form on the CPU only"
    counts = [state["step"] for state in optimizer.state.values() if "step" in state]  # SGD has none
    if any(str(count.dtype) != "torch.float32" for count in counts):
        return "counts its steps in a different dtype from its fused form"
    floating = all(parameter.is_floating_point() for group in groups for parameter in group["params"])
    if not devices <= {"cpu", "cuda"} or not floating:
        return f"parameters on {', '.join(sorted(devices))} cannot be fused"
    return None
