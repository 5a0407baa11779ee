"""The same update both ways, from the same state, for a few parameters of an optimizer: now and then, while it trains.

The update that the program would have made is computed on copies. Where the two differ by more than rounding, the entry
is switched off for good.
"""

from __future__ import annotations

import random
from collections import defaultdict
from inspect import unwrap
from typing import Any

FIRST = 2  # steps of an optimizer, each of which is looked at
EVERY = 500  # steps, about, from then on
PARAMETERS, ELEMENTS = 4, 1 << 20  # at a time, at most
ROUNDING = 8  # units in the last place of the largest weight …
SHARE = 1e-3  # … or of the largest change: powers of the betas are rounded too
OF_TORCH = "torch.optim"

_random = random.Random(0)


def is_due(step: int) -> bool:
    return step <= FIRST or _random.random() * EVERY < 1


class Proof:
    """Of one step: made before it, asked after it."""

    def __init__(self, torch: Any, optimizer: Any, own: list[dict[str, Any]]) -> None:
        """`own`: for each group the choice of the program."""
        self._torch, self._optimizer = torch, optimizer
        self._sampled = _sampled(optimizer, own)
        self._gradients = [(one.grad, one.grad._version) for one, _, _ in self._sampled]
        self._copies = [_copied(one) for one, _, _ in self._sampled]
        self._states = [_state(optimizer.state.get(one), group) for one, group, _ in self._sampled]

    def difference(self) -> str | None:
        """Why they are not the same. Host sync."""
        if not self._sampled or any(
            one.grad is not gradient or gradient._version != version
            for (one, _, _), (gradient, version) in zip(self._sampled, self._gradients, strict=True)
        ):
            return None  # the step computed its gradients itself, or somebody else wrote into them
        before = [one.detach().double() for one in self._copies]
        self._step()
        for (parameter, _, _), copy, then in zip(self._sampled, self._copies, before, strict=True):
            now, expected = parameter.detach().double(), copy.detach().double()
            off, change = float((now - expected).abs().max()), float((expected - then).abs().max())
            unit = self._torch.finfo(parameter.dtype).eps * float(expected.abs().max())
            if off > max(ROUNDING * unit, SHARE * change):
                return f"a weight differs by {off:.2g} from what the program's own step makes of it"
        return None

    def _step(self) -> None:
        """The program's own, of the copies."""
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
    """Parameters with their groups. An optimizer of the program's own, which may count its steps, is left alone."""
    if not type(optimizer).__module__.startswith(OF_TORCH):
        return []
    several = [
        (one, group, choice)
        for group, choice in zip(optimizer.param_groups, own, strict=False)
        for one in group["params"]
        if one.grad is not None and 0 < one.numel() <= ELEMENTS // PARAMETERS and one.is_floating_point()
    ]
    return _random.sample(several, min(PARAMETERS, len(several)))


def _copied(parameter: Any) -> Any:
    copy = parameter.detach().clone()
    copy.grad = parameter.grad.detach().clone()
    return copy


def _state(state: Any, group: dict[str, Any]) -> dict[str, Any]:
    """A count of steps lies on the host, where the step is not fused."""
    found = {key: one.clone() if hasattr(one, "clone") else one for key, one in (state or {}).items()}
    if "step" in found and hasattr(found["step"], "cpu") and not group.get("capturable"):
        found["step"] = found["step"].cpu()
    return found
