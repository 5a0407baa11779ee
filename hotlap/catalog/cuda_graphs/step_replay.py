"""The optimizer's step and the clipping of gradients, replayed while the root's backward is.

Gradients then lie at the same addresses at each step. If they do not (a last batch of another size), if a number of the
optimizer changed, or if its state was loaded again, the key differs and the step runs eagerly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hotlap.catalog.cuda_graphs.lent import Lent
from hotlap.catalog.cuda_graphs.parts import Whole
from hotlap.catalog.cuda_graphs.rules import is_hooked, replayed_optimizers, why_not_optimizer
from hotlap.catalog.cuda_graphs.steady import Steady, addresses, counts_of, key_of_step, state_of, step_of
from hotlap.catalog.fused_optimizer.tensors import mark_as_written
from hotlap.catalog.fused_optimizer.user_settings import stepping
from hotlap.loading.identity import ByIdentity
from hotlap.patch.signals import comes_from_outside
from hotlap.runtime.forwards import MISSING

CLIP = "clip_grad_norm_"
CLIP_ARGUMENTS = ("parameters", "max_norm", "norm_type", "error_if_nonfinite", "foreach")


@dataclass
class RecordedStep:
    """The captured step of one optimizer."""

    steady: Steady
    name: str
    why: str = "it has not stepped yet"
    state: list[Any] = field(default_factory=list)
    counts: list[Any] = field(default_factory=list)  # of steps, on the host

    def forget(self) -> None:
        self.steady.forget()
        self.state, self.counts = [], []


class StepReplay:
    def __init__(self, graphs: Whole) -> None:
        self._graphs, self._torch = graphs, graphs.torch
        self._clip, self._norm = Steady(graphs.recorder), Lent(graphs.torch)
        self._steps: ByIdentity[RecordedStep] = ByIdentity()
        self._failed: str | None = None
        self._hooked: dict[type, bool] = {}
        self._around_hooks: dict[type, bool] = {}

    def begin(self) -> None:
        """Replace the step, if possible before optimizers are made: a scheduler keeps the step it finds."""
        site = self._graphs.site
        for kind in replayed_optimizers(self._torch):
            if "step" in vars(kind):
                self._hooked[kind] = bool(getattr(kind.step, "hooked", False))
                site.replace(kind, "step", self._stepped)
        for owner in (self._torch.nn.utils, self._torch.nn.utils.clip_grad):
            site.replace(owner, CLIP, self._clipped)

    def drop(self) -> None:
        for step in self._steps.values():
            step.forget()
        self._forget_clipping()

    def _forget_clipping(self) -> None:
        self._clip.forget()
        self._norm.forget()

    def __str__(self) -> str:
        steps = self._steps.values()
        done = [f"{step.name}'s step" for step in steps if step.steady.recorded] + ["clipping"] * self._clip.recorded
        report = [f"{' and '.join(done)} too"] if done else []
        report += [
            f"{step.name} stays eager ({self._failed or step.why})" for step in steps if not step.steady.recorded
        ]
        return "; ".join(report or ["the optimizer stays eager (it has not stepped yet)"])

    # The optimizer's step

    def _stepped(self, original: Any, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._graphs.active:
            return original(*args, **kwargs)
        closure = args[0] if args else kwargs.get("closure")
        loss = None if closure is None else self._loss(original, closure)
        with stepping(optimizer):
            if self._is_replayed(optimizer):
                return loss
        return original(*args, **kwargs) if closure is None else original(lambda: loss)

    def _loss(self, original: Any, closure: Any) -> Any:
        try:
            with self._torch.enable_grad():
                return closure()
        except BaseException as error:
            original.error = error  # the user's own: not a failure of this entry
            raise

    def _is_replayed(self, optimizer: Any) -> bool:
        step = self._steps.get(optimizer)
        if step is None:
            step = RecordedStep(Steady(self._graphs.recorder), type(optimizer).__name__)
            self._steps.put(optimizer, step)
        if step.steady.recorded and not self._graphs.habits.scaler and not is_hooked(optimizer):
            key = key_of_step(self._torch, optimizer)  # every other reason against it would change the key
            if step.steady.is_for(key) and self._done(step, optimizer, key):
                return True
        why = self._why_not(optimizer)
        done = why is None and self._done(step, optimizer, key_of_step(self._torch, optimizer))
        step.why = why or "its gradients or settings change from step to step"
        if self._graphs.active:
            self._graphs.tell()
        return done

    def _why_not(self, optimizer: Any) -> str | None:
        if self._failed is not None or self._graphs.habits.scaler:
            return self._failed or "a GradScaler decides whether it steps"
        return why_not_optimizer(self._torch, optimizer)

    def _done(self, step: RecordedStep, optimizer: Any, key: list[Any]) -> bool:
        try:
            return self._replay(step, optimizer, key)
        except Exception as error:
            if self._graphs.site.seams.guard.strict or comes_from_outside(error):
                raise
            self._failed = f"capturing it failed: {type(error).__name__}: {error}"
            step.forget()
            return False

    def _replay(self, step: RecordedStep, optimizer: Any, key: list[Any]) -> bool:
        if not step.steady.ready(key):
            return False

        if not step.steady.is_for(key):
            step.state = state_of(optimizer)  # the capture reads and writes this memory, even if all others drop it
            step.counts = counts_of(self._torch, optimizer)

        def replay(*_: Any) -> None:
            step.steady.replay(key, lambda: step_of(self._torch, optimizer)())
            if step.counts:
                self._torch._foreach_add_(step.counts, 1.0)
            mark_as_written(self._torch, optimizer)

        if self._is_around_hooks(optimizer):
            replay = self._torch.optim.Optimizer.profile_hook_step(replay)
        replay(optimizer)
        return True

    def _is_around_hooks(self, optimizer: Any) -> bool:
        """Whether the class was hooked before hotlap replaced its step, so that its hooks are part of that step."""
        if (kind := type(optimizer)) not in self._around_hooks:
            self._around_hooks[kind] = next(
                (self._hooked[base] for base in kind.__mro__ if base in self._hooked), False
            )
        return self._around_hooks[kind]

    # Clipping

    def _clipped(self, original: Any, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        named = {**dict(zip(CLIP_ARGUMENTS, args, strict=False)), **kwargs}
        given = named.get("parameters")
        if not self._graphs.active or given is None or isinstance(given, self._torch.Tensor):
            return original(*args, **kwargs)
        known = self._graphs.parameters_of_root(given)
        named["parameters"] = parameters = list(given) if known is None else known  # a generator can be read only once
        norm = MISSING
        if isinstance(named.get("max_norm"), int | float):
            key: list[Any] = [item for item in named.items() if item[0] != "parameters"]
            key += addresses(self._torch, parameters)
            if self._clip.is_for(key) or self._may_clip(named):  # any other reason would change the key
                norm = self._clip_outcome(key, lambda: original.original(**named))
        return original(**named) if norm is MISSING else norm

    def _may_clip(self, named: dict[str, Any]) -> bool:
        kind = self._graphs.recorder.device_type
        return (
            self._failed is None
            and len(named) <= len(CLIP_ARGUMENTS)
            and not named.get("error_if_nonfinite")  # it waits for the device
            and all(parameter.device.type == kind for parameter in named["parameters"])
            and any(parameter.grad is not None for parameter in named["parameters"])
        )

    def _clip_outcome(self, key: list[Any], work: Any) -> Any:
        try:
            if not self._clip.ready(key):
                return MISSING
            if self._norm.is_free():
                return self._norm.give(self._clip.replay(key, work))
            self._forget_clipping()  # its memory is the program's now; the next capture has its own
            return MISSING
        except Exception as error:
            if self._graphs.site.seams.guard.strict or comes_from_outside(error):
                raise
            self._failed = f"capturing the clipping failed: {type(error).__name__}: {error}"
            self._forget_clipping()
            return MISSING
