"""Several optimizers as one: each steps its own weights, and one state holds what all of them remember."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hotlap.engine.errors import BadRecipe

AnyOptimizers = Optimizer | Sequence[Optimizer] | Mapping[str, Optimizer]


class States(MutableMapping[Tensor, dict[str, Any]]):
    """The states of all weights; a weight's is kept by its own optimizer."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = optimizers

    def _of(self, parameter: Tensor) -> Any:
        for optimizer in self.optimizers:
            if any(parameter is own for group in optimizer.param_groups for own in group["params"]):
                return optimizer.state
        raise KeyError(parameter)

    def __getitem__(self, parameter: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self._of(parameter)[parameter]
        return state

    def __setitem__(self, parameter: Tensor, state: dict[str, Any]) -> None:
        self._of(parameter)[parameter] = state

    def __delitem__(self, parameter: Tensor) -> None:
        del self._of(parameter)[parameter]

    def __iter__(self) -> Iterator[Tensor]:
        for optimizer in self.optimizers:
            yield from list(optimizer.state)

    def __len__(self) -> int:
        return sum(len(optimizer.state) for optimizer in self.optimizers)


class Several(Optimizer):
    """Groups and states are numbered through all optimizers, so a checkpoint holds them like those of a single one.

    With `names`, each optimizer steps along the gradient of its own loss, which has its name.
    """

    def __init__(self, optimizers: Sequence[Optimizer], names: Sequence[str] = ()) -> None:
        self.optimizers, self.names = tuple(optimizers), tuple(names)
        self.state = States(self.optimizers)  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        return {"optimizers": self.optimizers, "names": self.names}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__init__(**saved)  # type: ignore[misc]

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        states: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        first = 0
        for optimizer in self.optimizers:
            own = optimizer.state_dict()
            states |= {first + number: state for number, state in own["state"].items()}
            groups += [
                {**group, "params": [first + number for number in group["params"]]} for group in own["param_groups"]
            ]
            first += _count(optimizer)
        return {"state": states, "param_groups": groups}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        first, groups = 0, list(saved["param_groups"])
        for optimizer in self.optimizers:
            count, split = _count(optimizer), len(optimizer.param_groups)
            own, groups = groups[:split], groups[split:]
            states = {n - first: state for n, state in saved["state"].items() if first <= n < first + count}
            shifted = [{**group, "params": [number - first for number in group["params"]]} for group in own]
            optimizer.load_state_dict({"state": states, "param_groups": shifted})
            first += count


def _count(optimizer: Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def each(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    return optimizer.optimizers if isinstance(optimizer, Several) else (optimizer,)


def name_of(optimizer: Optimizer) -> str:
    return " and ".join(type(own).__name__ for own in each(optimizer))


def one_optimizer(given: AnyOptimizers) -> Optimizer:
    """Return what was given as one optimizer; raise where a weight belongs to two of several, or for anything else."""
    if isinstance(given, Optimizer):
        return given
    members = given.values() if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else ()
    found = list(members)
    if not found or not all(isinstance(optimizer, Optimizer) for optimizer in found):
        raise BadRecipe(
            f"the optimizer is a {type(given).__name__}; give one of torch.optim, a list of them, or a dict of them by "
            "the names of their losses"
        )
    owned = [id(parameter) for optimizer in found for group in optimizer.param_groups for parameter in group["params"]]
    if len(set(owned)) < len(owned):
        raise BadRecipe(
            f"{len(owned) - len(set(owned))} of the {len(set(owned))} tensors to train belong to two optimizers; "
            "give each to one of them"
        )
    return Several(found, list(given) if isinstance(given, Mapping) else ())
