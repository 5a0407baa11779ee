"""Tries each root with channels last on its own input; where that runs, weights and inputs are moved for good."""

from __future__ import annotations

import weakref
from typing import Any

from hotlap.catalog.channels_last.layout import Layout, shaped
from hotlap.catalog.rehearsal import compiled, hooked, parallel, rehearse
from hotlap.catalog.site import Original, Site
from hotlap.loading.identity import ByIdentity

VIEW = "view size is not compatible"  # torch's words when a view cannot be had in this layout


def apply(site: Site) -> None:
    moved = Moved(site)
    site.before(site.seams.stepping, moved.optimizers.add)
    site.when_root(moved.known)


class Moved:
    """The roots with channels last, and the optimizers whose state moves along."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._layouts: ByIdentity[Layout] | None = None

    def known(self, root: Any) -> None:
        site, layout = self.site, Layout(self.site.torch, root)
        if not layout.weights:
            site.no_effect("the model has no convolutions over images or volumes")
        elif not site.asked and any(one.device.type == "cpu" for one in layout.weights):
            site.no_effect("on some CPUs it is many times slower; ask for it by name, or let hotlap tune measure it")
        elif all(one.is_contiguous(memory_format=layout.formats[id(one)]) for one in layout.weights):
            site.no_effect("its weights have the channels last already")
        elif (name := parallel(root)) is not None:
            site.refused(f"{name} has laid out its gradients already")
        elif compiled(root):
            site.refused("the model is compiled, which chooses layouts by itself")
        elif hooked(site.torch, root):
            site.refused("hooks in the model may rely on the layout of what they see")
        else:
            site.stand_in_for(root, ChannelsLast(self, layout).call)

    def add(self, root: Any, layout: Layout) -> None:
        if self._layouts is None:
            self._layouts = ByIdentity()
            self._keep_together(self._layouts)
        self._layouts.put(root, layout)

    def _keep_together(self, layouts: ByIdentity[Layout]) -> None:
        """Whatever enters or leaves an optimizer's state has the layout its reader expects."""
        site, optimizers = self.site, self.optimizers

        def put_back() -> None:
            for layout in layouts.values():
                layout.put(optimizers, last=False)

        def saved(original: Original, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            outcome = original(*args, **kwargs)
            for layout in layouts.values():
                outcome = layout.as_saved(optimizer, outcome)
            return outcome

        def loaded(original: Original, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            outcome = original(*args, **kwargs)
            for layout in layouts.values():
                layout.put_state(optimizer, last=True)
            return outcome

        site.ledger.later(put_back)
        site.replace(site.torch.optim.Optimizer, "state_dict", saved)
        site.replace(site.torch.optim.Optimizer, "load_state_dict", loaded)


class ChannelsLast:
    """One root."""

    def __init__(self, all_moved: Moved, layout: Layout) -> None:
        self._site, self._all, self._layout = all_moved.site, all_moved, layout
        self._moved: bool | None = None  # None: not tried yet

    def call(self, original: Original, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._moved is None and module.training:
            self._moved = self._try(module, args, kwargs)
        if not self._moved:
            return original(*args, **kwargs)
        args_last, kwargs_last = shaped(self._site.torch, (args, kwargs), last=True)
        try:
            outcome = original(*args_last, **kwargs_last)
        except RuntimeError as error:
            if VIEW not in str(error):
                raise
            self._site.withdraw("the model takes a view that needs the channels first")
            return original(*args, **kwargs)
        return shaped(self._site.torch, outcome, last=False)

    def _try(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        site, layout, optimizers = self._site, self._layout, self._all.optimizers
        layout.put(optimizers, last=True)
        try:
            rehearse(site.torch, module, *shaped(site.torch, (args, kwargs), last=True))
        except RuntimeError as error:
            layout.put(optimizers, last=False)
            why = "the model takes a view that needs the channels first" if VIEW in str(error) else str(error)
            site.refused(why.splitlines()[0])
            return False
        self._all.add(module, layout)
        site.applied(f"{len(layout.weights)} convolutions")
        return True
