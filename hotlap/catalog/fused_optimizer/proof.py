"""An occasional check of the fused update against the program's own, from the same state, for a few parameters.

The update that the program would have made is computed on copies. If the two differ by more than rounding, the entry is
switched off for good.
"""

from __future__ import annotations

import random
from collections import defaultdict
from inspect import unwrap
from typing import Any

from hotlap.runtime.replaced_methods import is_of_torch

FIRST = 2  # first steps of an optimizer, each of which is checked
EVERY = 500  # about one step in this many is checked from then on
PARAMETERS, ELEMENTS = 4, 1 << 20  # at a time, at most
ROUNDING = 8  # units in the last place of the largest weight …
SHARE = 1e-3  # … or of the largest change: powers of the betas are rounded too
OF_TORCH = "torch.optim"

_random = random.Random(0)


def is_due(step: int) -> bool:
    return step <= FIRST or _random.random() * EVERY < 1


class Proof:
    """The check of one step, created before it and evaluated after it."""

    def __init__(self, torch: Any, optimizer: Any, own: list[dict[str, Any]]) -> None:
        """`own` holds, for each group, the program's own settings."""
        self._torch, self._optimizer = torch, optimizer
        self._sampled = _sampled(optimizer, own)
        self._gradients = [(parameter.grad, parameter.grad._version) for parameter, _, _ in self._sampled]
        self._copies = [_copied(parameter) for parameter, _, _ in self._sampled]
        self._states = [_state(optimizer.state.get(parameter), group) for parameter, group, _ in self._sampled]

    def difference(self) -> str | None:
        """Return how the two updates differ, or None. Host sync."""
        if not self._sampled or any(
            parameter.grad is not gradient or gradient._version != version
            for (parameter, _, _), (gradient, version) in zip(self._sampled, self._gradients, strict=True)
        ):
            return None  # the step computed its gradients itself, or other code wrote into them
        before = [copy.detach().double() for copy in self._copies]
        self._step()
        for (parameter, _, _), copy, then in zip(self._sampled, self._copies, before, strict=True):
            now, expected = parameter.detach().double(), copy.detach().double()
            off, change = float((now - expected).abs().max()), float((expected - then).abs().max())
            unit = self._torch.finfo(parameter.dtype).eps * float(expected.abs().max())
            if off > max(ROUNDING * unit, SHARE * change):
                return f"a weight differs by {off:.2g} from the result of the program's own step"
        return None

    def _step(self) -> None:
        """Make the program's own step on the copies."""
        again = object.__new__(type(self._optimizer))
        vars(again).update(vars(self._optimizer))
        again.state = defaultdict(dict, zip(self._copies, self._states, strict=True))
        again.param_groups = [
            {**group, **own, "params": [copy]}
            for (_, group, own), copy in zip(self._sampled, self._copies, strict=True)
        ]
        with self._torch.no_grad():
            unwrap(type(self._optimizer).step)(again)


def _sampled(optimizer: Any, own: list[dict[str, Any]]) -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Sample parameters with their groups; none for an optimizer or a step of the program's own, which may count."""
    if not type(optimizer).__module__.startswith(OF_TORCH) or not is_of_torch(type(optimizer).step):
        return []
    candidates = [
        (parameter, group, choice)
        for group, choice in zip(optimizer.param_groups, own, strict=False)
        for parameter in group["params"]
        if parameter.grad is not None
        and 0 < parameter.numel() <= ELEMENTS // PARAMETERS
        and parameter.is_floating_point()
    ]
    return _random.sample(candidates, min(PARAMETERS, len(candidates)))


def _copied(parameter: Any) -> Any:
    copy = parameter.detach().clone()
    copy.grad = parameter.grad.detach().clone()
    return copy


def _state(state: Any, group: dict[str, Any]) -> dict[str, Any]:
    """Copy the state of a parameter; the step count of an unfused step lies on the host."""
    found = {key: value.clone() if hasattr(value, "clone") else value for key, value in (state or {}).items()}
    if "step" in found and hasattr(found["step"], "cpu") and not group.get("capturable"):
        found["step"] = found["step"].cpu()
    return found
