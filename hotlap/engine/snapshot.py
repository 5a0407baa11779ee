"""Save all that a training step changes and restore it to the bit, in place: graphs hold the addresses."""

from __future__ import annotations

import random
from collections.abc import Iterable
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

PLAIN = (bool, int, float, str, type(None))
CONTAINERS = (list, dict, set)
TORCH_OWN = frozenset(vars(nn.Module()))  # parameters, buffers, hooks: not the user's


class Snapshot:
    """`counters` are attributes of objects that count on the host. State that the optimizer makes for a parameter
    meanwhile is removed, but with `captured` it stays, since a graph may hold it.
    """

    def __init__(
        self,
        tensors: Iterable[Tensor],
        model: nn.Module,
        optimizer: Optimizer,
        scaler: torch.amp.GradScaler | None,
        counters: Iterable[tuple[object, str]] = (),
        captured: bool = False,
    ) -> None:
        self.optimizer, self.scaler, self.captured = optimizer, scaler, captured
        self.attributes = Attributes(model)
        self.states = [(parameter, state, dict(state)) for parameter, state in optimizer.state.items()]
        moments = [value for _, _, state in self.states for value in state.values()]
        rates = [group["lr"] for group in optimizer.param_groups]
        self.tensors = [*tensors, *(value for value in [*moments, *rates] if isinstance(value, Tensor))]
        self.copies = [tensor.detach().clone() for tensor in self.tensors]
        places = [(group, "lr") for group in optimizer.param_groups]
        places += [(vars(holder), name) for holder, name in counters]
        self.host_values = [(held, name, held[name]) for held, name in places if not isinstance(held[name], Tensor)]
        self.scale = None if scaler is None else scaler.state_dict()  # host sync, once a phase
        self.random = random_states()

    def add(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self.tensors.append(tensor)
            self.copies.append(tensor.detach().clone())

    def put_back(self) -> None:
        self.attributes.put_back()
        self._put_back_states()
        with torch.no_grad():
            for tensor, copy in zip(self.tensors, self.copies, strict=True):
                tensor.detach().copy_(copy)
        for state, name, value in self.host_values:
            state[name] = value
        if self.scaler is not None and self.scale:
            self.scaler.load_state_dict(self.scale)
        self.optimizer.zero_grad(set_to_none=True)
        set_random_states(self.random)

    def _put_back_states(self) -> None:
        """Put the same objects back in the same places: an optimizer may have replaced what it had."""
        held = self.optimizer.state
        for parameter, state, before in self.states:
            held[parameter] = state
            for name in [name for name in state if name not in before]:
                del state[name]
            state.update(before)
        if not self.captured and len(held) > len(self.states):
            known = {id(parameter) for parameter, _, _ in self.states}
            for parameter in [key for key in held if id(key) not in known]:
                del held[parameter]


def moved(parameters: list[Tensor], before: list[Tensor]) -> list[Tensor]:
    return [parameter.detach() - old for parameter, old in zip(parameters, before, strict=True)]


def disagreement(expected: list[Tensor], found: list[Tensor]) -> float:
    """Return the norm of the difference of two updates from the same state, over that of the first. Host sync."""
    pairs = zip(expected, found, strict=True)
    apart = sum(float((a.double() - b.double()).nan_to_num().square().sum()) for a, b in pairs)
    size = sum(float(a.double().nan_to_num().square().sum()) for a in expected)
    return float((apart / size) ** 0.5) if size > 0 else 0.0


def random_states() -> dict[str, Any]:
    """Return the states of torch (host and current GPU), numpy and Python, as values that a checkpoint can hold."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    assert kind == "MT19937"
    version, numbers, next_gauss = random.getstate()
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": [torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(gauss)],
        "python": [version, list(numbers), next_gauss],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def seed_streams(seed: int) -> None:
    """Seed every stream of `random_states`."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def set_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    version, numbers, next_gauss = states["python"]
    random.setstate((version, tuple(numbers), next_gauss))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


class Attributes:
    """What modules hold besides the values of tensors; `put_back` undoes a forward that counts or makes buffers."""

    def __init__(self, model: nn.Module) -> None:
        spaces = [space for module in model.modules() for space in (vars(module), module._buffers)]
        self.before = [(space, dict(space)) for space in spaces]
        loose = [value for module in model.modules() for name, value in vars(module).items() if name not in TORCH_OWN]
        self.contents = [(value, copy(value)) for value in loose if type(value) in CONTAINERS]
        self.tensors = [
            (value, value.detach().clone()) for value in loose if type(value) is Tensor and not value.is_inference()
        ]

    def put_back(self) -> None:
        for held, content in self.contents:
            held.clear()
            held.extend(content) if isinstance(held, list) else held.update(content)
        with torch.no_grad():
            for tensor, value in self.tensors:
                tensor.detach().copy_(value)
        for space, before in self.before:
            for name in {*space, *before}:
                if name not in before:
                    del space[name]
                elif space.get(name) is not before[name]:
                    space[name] = before[name]


class HostTraces:
    """What a step leaves behind on the host besides tensors: a replay would not do it again."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model, self.device = model, device
        self.attributes, self.random = self._attributes(), random_states()

    def why_not(self) -> str | None:
        now = self._attributes()
        for key in {*now, *self.attributes}:
            if now.get(key) != self.attributes.get(key):
                return f"forward changes the attribute {key[1]} of {key[0] or 'the model'}"
        new, old = random_states(), self.random
        drawn = new["python"] != old["python"] or not torch.equal(new["numpy"][0], old["numpy"][0])
        drawn = drawn or new["numpy"][1:] != old["numpy"][1:]
        if drawn or (self.device.type != "cpu" and not torch.equal(new["torch"], old["torch"])):
            return "forward draws random numbers on the host"
        return None

    def _attributes(self) -> dict[tuple[str, str], Any]:
        """Return numbers by value and buffers by identity: one that forward replaces would be replaced only once."""
        found: dict[tuple[str, str], Any] = {}
        for path, module in self.model.named_modules():
            found |= {(path, name): value for name, value in vars(module).items() if isinstance(value, PLAIN)}
            found |= {(path, name): id(buffer) for name, buffer in module._buffers.items()}
        return found
