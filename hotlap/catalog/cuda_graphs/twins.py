"""Twin tensors over the memory of a module's parameters, put in their place while forward is captured.

Autograd keeps one node for each parameter, bound to the stream where it was first used, for as long as any loss of the
user's is alive. A captured backward must not touch that stream: a twin gets a node of its own.
"""

from __future__ import annotations

import weakref
from typing import Any

# Recurrent modules compute with a list of their parameters, and keep weak references to the same. If the two differ
# from the parameters they hold, they move all weights to new memory.
FLAT, FLAT_REFERENCES = "_flat_weights", "_flat_weight_refs"


class Twins:
    def __init__(self, module: Any, parameters: list[Any]) -> None:
        self._parameters = parameters
        self.tensors = [parameter.detach().requires_grad_() for parameter in parameters]
        twin_of = {id(parameter): twin for parameter, twin in zip(parameters, self.tensors, strict=True)}
        self._places: list[tuple[dict[str, Any], str, Any, Any]] = []  # holder, name, original, replacement
        for child in module.modules():
            for name, parameter in child._parameters.items():
                if id(parameter) in twin_of:
                    self._places.append((child._parameters, name, parameter, twin_of[id(parameter)]))
            self._add_flat(vars(child), twin_of)

    def _add_flat(self, held: dict[str, Any], twin_of: dict[int, Any]) -> None:
        if not isinstance(held.get(FLAT), list):
            return
        flat = [twin_of.get(id(weight), weight) for weight in held[FLAT]]
        self._places.append((held, FLAT, held[FLAT], flat))
        if FLAT_REFERENCES in held:
            references = [None if weight is None else weakref.ref(weight) for weight in flat]
            self._places.append((held, FLAT_REFERENCES, held[FLAT_REFERENCES], references))

    def __enter__(self) -> None:
        for holder, name, _, twin in self._places:
            holder[name] = twin

    def __exit__(self, *_: object) -> None:
        for holder, name, original, _ in self._places:
            holder[name] = original

    @property
    def are_true(self) -> bool:
        """Whether the twins still lie where the parameters do: a forward may have moved its weights."""
        pairs = zip(self.tensors, self._parameters, strict=True)
        return all(twin.data_ptr() == parameter.data_ptr() for twin, parameter in pairs)
