"""Other tensors over the memory of a module's parameters, in their place while forward is recorded.

Autograd keeps one node for each parameter, bound to the stream where it was first used, for as long as any loss of the
user's is alive. A backward that is captured must not meet that stream: a twin gets a node of its own.
"""

from __future__ import annotations

import weakref
from typing import Any

# Of recurrent modules: the parameters in a list, which is what they compute with, and references to the same. Where the
# two differ from the parameters they hold, they move all weights to new memory.
FLAT, FLAT_REFERENCES = "_flat_weights", "_flat_weight_refs"


class Twins:
    def __init__(self, module: Any, parameters: list[Any]) -> None:
        self._parameters = parameters
        self.tensors = [one.detach().requires_grad_() for one in parameters]
        twin_of = {id(one): twin for one, twin in zip(parameters, self.tensors, strict=True)}
        self._places: list[tuple[dict[str, Any], str, Any, Any]] = []  # holder, name, what is there, what replaces it
        for child in module.modules():
            for name, one in child._parameters.items():
                if id(one) in twin_of:
                    self._places.append((child._parameters, name, one, twin_of[id(one)]))
            self._add_flat(vars(child), twin_of)

    def _add_flat(self, held: dict[str, Any], twin_of: dict[int, Any]) -> None:
        if not isinstance(held.get(FLAT), list):
            return
        flat = [twin_of.get(id(one), one) for one in held[FLAT]]
        self._places.append((held, FLAT, held[FLAT], flat))
        if FLAT_REFERENCES in held:
            references = [None if one is None else weakref.ref(one) for one in flat]
            self._places.append((held, FLAT_REFERENCES, held[FLAT_REFERENCES], references))

    def __enter__(self) -> None:
        for holder, name, _, twin in self._places:
            holder[name] = twin

    def __exit__(self, *_: object) -> None:
        for holder, name, one, _ in self._places:
            holder[name] = one

    @property
    def are_true(self) -> bool:
        """Whether they still lie where the parameters do: a forward may have moved what it computes with."""
        pairs = zip(self.tensors, self._parameters, strict=True)
        return all(twin.data_ptr() == one.data_ptr() for twin, one in pairs)
