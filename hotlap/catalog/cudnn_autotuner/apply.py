"""Switches the autotuner on once the shapes that reach a convolutional root are known to be few."""

from __future__ import annotations

import weakref
from typing import Any

from hotlap.catalog.rehearsal import signature
from hotlap.catalog.site import Site

LOOK = 4  # training calls looked at first
FEW = 2  # shapes among them: the usual one and the last batch of an epoch
MANY = 8  # shapes in all: each is tuned anew, which takes seconds


def apply(site: Site) -> None:
    site.when_root(lambda root: _consider(site, root))


def _consider(site: Site, root: Any) -> None:
    why = _why_not(site.torch, root)
    if why is not None:
        site.no_effect(why)
        return
    shapes, itself = Shapes(site), weakref.ref(root)
    site.before(site.seams.calling, lambda module, args, kwargs: shapes.called(module is itself(), args, kwargs))


def _why_not(torch: Any, root: Any) -> str | None:
    if not any(isinstance(one, torch.nn.modules.conv._ConvNd) for one in root.modules()):
        return "the model has no convolutions, which is all that it concerns"
    if torch.backends.cudnn.benchmark:
        return "the program has switched it on already"
    if torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
        return "the program wants deterministic algorithms"
    return None


class Shapes:
    """The shapes a root is called with."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._seen: set[Any] = set()
        self._calls = 0
        self._on = False

    def called(self, ours: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not ours:
            return
        self._calls += 1
        self._seen.add(signature(self._site.torch, (args, kwargs)))
        if self._on and len(self._seen) > MANY:
            self._site.withdraw(f"{len(self._seen)} shapes of input came by, and each would be tuned anew")
        elif not self._on and self._calls == LOOK:
            self._decide()

    def _decide(self) -> None:
        if len(self._seen) > FEW:
            self._site.refused(f"{len(self._seen)} shapes in {LOOK} calls: each would be tuned anew")
            self._site.close()
            return
        cudnn = self._site.torch.backends.cudnn
        cudnn.benchmark, self._on = True, True
        self._site.ledger.later(lambda: setattr(cudnn, "benchmark", False))
        self._site.applied(f"after {LOOK} calls of steady shapes")
