"""What the user had chosen for an optimizer that was switched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

OURS = {"fused": True, "foreach": False}
STEP = "step"  # a count per tensor: on its device while fused, else on the host, unless `capturable`


class Chosen:
    """By parameter group, in their order: loading replaces the groups themselves."""

    def __init__(self, optimizer: Any) -> None:
        """Switches the optimizer."""
        self.steps = 1
        groups = optimizer.param_groups
        self._own = [{key: group[key] for key in OURS if key in group} for group in groups]
        for group, own in zip(groups, self._own, strict=True):
            group.update((key, OURS[key]) for key in own)
            for parameter in group["params"]:
                _move(optimizer.state.get(parameter), parameter.device)

    def put_back(self, optimizer: Any) -> None:
        for group, own in self._still_ours(optimizer.param_groups):
            group.update(own)
            if _counts_on_host(group):
                for parameter in group["params"]:
                    _move(optimizer.state.get(parameter), "cpu")

    def as_saved(self, saved: Any) -> Any:
        """Torch makes groups and state anew to save them, but what is held per parameter is the optimizer's own."""
        state = saved["state"]
        for group, own in self._still_ours(saved["param_groups"]):
            group.update(own)
            if _counts_on_host(group):
                for key in group["params"]:
                    if STEP in state.get(key, ()):
                        state[key] = dict(state[key])
                        _move(state[key], "cpu")
        return saved

    @contextmanager
    def as_chosen(self, groups: list[dict[str, Any]]) -> Iterator[None]:
        """To be looked at: nothing steps meanwhile."""
        pairs = self._still_ours(groups)
        for group, own in pairs:
            group.update(own)
        try:
            yield
        finally:
            for group, own in pairs:
                group.update((key, OURS[key]) for key in own)

    def _still_ours(self, groups: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Groups may have been added since, or set by the user."""
        pairs = zip(groups, self._own, strict=False)
        return [(group, own) for group, own in pairs if all(group.get(key) is OURS[key] for key in own)]


def separate(held: dict[str, Any]) -> dict[str, Any]:
    """What an optimizer holds, in containers that can be written into."""
    groups = [dict(group) for group in held["param_groups"]]
    return {**held, "param_groups": groups, "state": copy(held["state"])}


def _counts_on_host(group: dict[str, Any]) -> bool:
    return not group.get("fused") and not group.get("capturable")


def _move(state: dict[str, Any] | None, device: Any) -> None:
    """Host sync, where a count leaves a GPU."""
    if state and hasattr(state.get(STEP), "to"):
        state[STEP] = state[STEP].to(device)
