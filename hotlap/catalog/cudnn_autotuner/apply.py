"""Switch the autotuner on once the shapes that reach a convolutional root are known to be few."""

from __future__ import annotations

from typing import Any

from hotlap.loading.identity import ByIdentity
from hotlap.runtime.rehearsal import signature
from hotlap.runtime.site import Site

LOOK = 4  # training calls observed first
FEW = 2  # shapes among them: the usual one and the last batch of an epoch
MANY = 8  # shapes in all: tuning each takes seconds


def apply(site: Site) -> None:
    site.when_root(Autotuner(site).known)


class Autotuner:
    """One switch for all roots: any of them may keep it off."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._roots: ByIdentity[Shapes] | None = None
        self._on = False

    def known(self, root: Any) -> None:
        why = self._why_not(root)
        if why is not None:
            self._site.no_effect(why)
            return
        if self._roots is None:
            self._roots = ByIdentity()
            self._site.before(self._site.seams.calling, self._called)
        self._roots.put(root, Shapes())

    def _why_not(self, root: Any) -> str | None:
        torch = self._site.torch
        if not any(isinstance(module, torch.nn.modules.conv._ConvNd) for module in root.modules()):
            return "the model has no convolutions, and it tunes nothing else"
        if torch.backends.cudnn.benchmark and not self._on:
            return "the program has already switched it on"
        if torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
            return "the program wants deterministic algorithms"
        return None

    def _called(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        shapes = None if self._roots is None else self._roots.get(module)
        if shapes is None:
            return
        shapes.calls += 1
        shapes.seen.add(signature(self._site.torch, args, kwargs))
        many = len(shapes.seen) > (FEW if shapes.calls <= LOOK else MANY)
        if many and self._on:
            self._site.withdraw(f"{len(shapes.seen)} input shapes were seen, and each would be tuned anew")
        elif shapes.calls == LOOK and not self._on:
            self._decide(shapes)

    def _decide(self, shapes: Shapes) -> None:
        if len(shapes.seen) > FEW:
            self._site.refused(f"{len(shapes.seen)} input shapes in {LOOK} calls, and each would be tuned anew")
            self._site.close()
            return
        cudnn = self._site.torch.backends.cudnn
        cudnn.benchmark, self._on = True, True
        self._site.ledger.later(lambda: setattr(cudnn, "benchmark", False))
        self._site.applied(f"after {LOOK} calls of steady shapes")


class Shapes:
    """The input shapes that a root was called with."""

    def __init__(self) -> None:
        self.seen: set[Any] = set()
        self.calls = 0
