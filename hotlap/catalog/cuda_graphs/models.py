"""Several models, or one that is called several times before a backward: each call has a capture of its own.

Examples are a generator and its discriminator, a pair of networks, a model that sees two views of a batch. Each capture
serves one call from its forward to its backward, and is not replayed again before that. Derivatives go through
autograd, which adds up those of several calls of a model.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

from hotlap.catalog.cuda_graphs.graphed_module import GraphedRoot
from hotlap.catalog.cuda_graphs.inputs import kinds_of
from hotlap.catalog.cuda_graphs.parts import Whole
from hotlap.catalog.cuda_graphs.rules import Differs, why_not_root
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.forwards import MISSING

SEEN = 3  # calls of a kind before it is captured
AT_ONCE = 4  # captures of a kind: this many calls may await their backward
MOST = 12  # captures of a model in all: each holds its activations
MOST_KINDS = 64  # kinds told apart; a model called in more ways is no longer captured


class Models:
    def __init__(self, graphs: Whole) -> None:
        self._graphs = graphs
        self._held: dict[int, Model] = {}

    def add(self, module: Any) -> None:
        key = id(module)
        self._held[key] = Model(self._graphs, module, lambda: self._held.pop(key, None))

    def of(self, module: Any) -> Model | None:
        found = self._held.get(id(module))
        return found if found is not None and found.is_of(module) else None

    @property
    def recorded(self) -> int:
        return sum(len(model.recordings) for model in self._held.values())

    @property
    def why_not(self) -> str | None:
        """Return a reason if none of the models can be captured, else None."""
        reasons = [model.why_not for model in self._held.values()]
        return reasons[0] if reasons and all(reasons) else None

    def __str__(self) -> str:
        reported = [str(model) for model in self._held.values() if model.recordings or model.why_not is not None]
        return "; ".join(reported)

    def drop(self) -> None:
        for model in self._held.values():
            model.drop()


class Model:
    """The calls of one model."""

    def __init__(self, graphs: Whole, module: Any, gone: Any) -> None:
        self._graphs, self._torch = graphs, graphs.torch

        def let_go(_: Any) -> None:
            self.drop()
            gone()

        self._module, self._name = weakref.ref(module, let_go), type(module).__name__
        self._seen: Counter[Any] = Counter()
        self._kinds: dict[int, Any] = {}  # what each capture was made for
        self._made = 0
        self.recordings: list[GraphedRoot] = []
        self.why_not: str | None = None

    def is_of(self, module: Any) -> bool:
        return self._module() is module

    def __str__(self) -> str:
        if self.why_not is not None:
            return f"{self._name} stays eager ({self.why_not})"
        return f"forward and backward of {self._name} ({len(self.recordings)} captured)"

    def __call__(self, module: Any, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what forward would, or MISSING if this call is not replayed. Raises Differs."""
        if self.why_not is not None:
            return MISSING
        for graphed in self.recordings:
            if (found := graphed(module, forward, args, kwargs)) is not MISSING:
                return found
        try:
            recording = self._recorded(module, forward, args, kwargs)
        except Differs:
            raise
        except EntryDeclined as refusal:
            self.why_not = str(refusal)
            self.drop()
            self._graphs.tell()
            return MISSING
        return MISSING if recording is None else recording(module, forward, args, kwargs)

    def _recorded(self, module: Any, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        torch, kind = self._torch, self._graphs.recorder.device_type
        leaves, shape = torch.utils._pytree.tree_flatten((args, kwargs))
        kinds = kinds_of(torch, leaves, kind, differentiated=True)
        if kinds is None or self._made >= MOST or len(self._seen) >= MOST_KINDS or torch.is_anomaly_enabled():
            return None
        trained = tuple(parameter.requires_grad for parameter in module.parameters())
        key = (str(shape), tuple(kinds), trained)
        self._seen[key] += 1
        if self._seen[key] < SEEN or sum(recorded_key == key for recorded_key in self._kinds.values()) >= AT_ONCE:
            return None
        leads_through = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)
        if not leads_through and not any(trained):
            return None
        if (why := why_not_root(torch, module, kind, leads_through)) is not None:
            raise EntryDeclined(why)
        self._made += 1
        recording = GraphedRoot(torch, self._graphs.recorder, module, forward, args, kwargs, differentiated=True)
        self.recordings.append(recording)
        self._kinds[id(recording)] = key
        self._graphs.tell()
        return recording

    def drop(self) -> None:
        recordings, self.recordings = self.recordings, []
        self._kinds.clear()
        for recording in recordings:
            recording.forget()
