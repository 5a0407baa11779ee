"""Finds the root training modules and reports them to entries."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from hotlap.loading.identity import ByIdentity
from hotlap.patch.roots import Roots
from hotlap.patch.seams import Seams

RootKnown = Callable[[Any], None]
GIVE_UP = 12  # steps of one optimizer
AT_ONCE, EVERY = 24, 50  # walks over all objects, tens of milliseconds each; beyond that, one per so many steps


class RootDiscovery:
    """Finds the root modules of one process for all its entries; costs nothing unless an entry subscribes.

    Each optimizer leads to the roots it trains, so a second network, or one trained later, is reported like the first.
    """

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._waiting: list[RootKnown] = []
        self._late: list[Late] = []
        self._optimizers: ByIdentity[bool] = ByIdentity()  # seen
        self._searches: ByIdentity[Search] = ByIdentity()  # under way, by optimizer
        self._known_roots: ByIdentity[bool] = ByIdentity()  # those that were reported
        self._steps = self._walks = 0
        self._listening = False
        self._by_hand: ByHand | None = None

    def when_root(self, known: RootKnown) -> None:
        """Call `known(module)` for each root, between two steps: after the second step of an optimizer that trains it.

        A root is the outermost module *called* that owns parameters of an optimizer. Where the program updates its
        weights by hand, a backward pass counts as a step, of all parameters that have a gradient.
        """
        if not self._waiting:
            self._seams.stepping.subscribe(after=self._stepped)
            self._seams.backward.subscribe(after=self._went_back)
        self._waiting.append(known)
        if len(self._known_roots):
            self._late.append(Late(known))

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self._steps += 1
        if self._late:
            trained = {id(parameter) for parameter in parameters_of(optimizer)}
            roots = [
                root
                for root in self._known_roots.things()
                if any(id(parameter) in trained for parameter in root.parameters())
            ]
            self._late = [late for late in self._late if late.report(roots)]
        search = self._searches.get(optimizer)
        if search is None and optimizer not in self._optimizers:
            search = self._begin(optimizer)
        if search is None:
            return
        self._walks += not search.has_found
        if search.is_over_after(optimizer):
            self._searches.drop(optimizer)
            self._listen()
            self._report([root for root in search.found() if root not in self._known_roots])

    def _went_back(self, *_: Any) -> None:
        if self._seams.without_optimizer:
            self._by_hand = self._by_hand or ByHand(self._seams.torch)
            self._stepped(self._by_hand)

    def _begin(self, optimizer: Any) -> Search | None:
        if self._walks >= AT_ONCE + self._steps // EVERY:
            return None  # for a program that keeps making optimizers; tried again at a later step
        self._optimizers.put(optimizer, True)
        if self._trains_known_roots(optimizer):
            return None
        search = Search(self._seams)
        self._searches.put(optimizer, search)
        self._listen()
        return search

    def _trains_known_roots(self, optimizer: Any) -> bool:
        """Return whether the optimizer trains known roots only, so that no search is needed."""
        known = {id(parameter) for root in self._known_roots.things() for parameter in root.parameters()}
        return all(id(parameter) in known for parameter in parameters_of(optimizer))

    def _listen(self) -> None:
        """Subscribe to module calls only while a search is under way: the seam costs less without a subscriber."""
        wanted = len(self._searches) > 0
        if wanted and not self._listening:
            self._seams.calling.subscribe(before=self._called)
        elif self._listening and not wanted:
            self._seams.calling.unsubscribe(self._called)
        self._listening = wanted

    def _called(self, module: Any, *_: Any) -> None:
        for search in self._searches.values():
            search.called(module)

    def _report(self, roots: list[Any]) -> None:
        for root in roots:
            self._known_roots.put(root, True)
            for late in self._late:
                late.reported.put(root, True)
        for known in list(self._waiting):
            for root in roots:
                known(root)


class ByHand:
    """Stands for the optimizer of a program that updates its weights by hand."""

    def __init__(self, torch: Any) -> None:
        modules = [obj for obj in gc.get_objects() if issubclass(type(obj), torch.nn.Module)]
        trained = {id(p): p for module in modules for p in module.parameters() if p.grad is not None}
        self._trained = [weakref.ref(parameter) for parameter in trained.values()]  # the program may free its model

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [{"params": [parameter for ref in self._trained if (parameter := ref()) is not None]}]


class Late:
    """A subscriber that came after roots were reported: it gets those still trained, at the next steps."""

    def __init__(self, known: RootKnown) -> None:
        self._known, self._steps = known, 0
        self.reported: ByIdentity[bool] = ByIdentity()

    def report(self, roots: list[Any]) -> bool:
        """Report the roots not reported yet; return whether there may be more."""
        self._steps += 1
        for root in roots:
            if root not in self.reported:
                self.reported.put(root, True)
                self._known(root)
        return self._steps < GIVE_UP


class Search:
    """The search for the roots that one optimizer trains."""

    def __init__(self, seams: Seams) -> None:
        self._roots = Roots(seams)
        self._steps = 0

    @property
    def has_found(self) -> bool:
        return bool(self._roots.tops)

    def called(self, module: Any) -> None:
        self._roots.called(module)

    def is_over_after(self, optimizer: Any) -> bool:
        """Return whether the search is over after this step; it finds modules, then keeps those that are called."""
        self._steps += 1
        if self.has_found:
            self._roots.settle()
        else:
            self._roots.search(parameters_of(optimizer))
        return self._roots.settled or self._steps >= GIVE_UP

    def found(self) -> list[Any]:
        roots = self._roots.called_modules
        self._roots.forget()
        return roots


def parameters_of(optimizer: Any) -> Iterator[Any]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
