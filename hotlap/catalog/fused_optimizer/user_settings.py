"""The user's settings of an optimizer that steps fused; its groups show them whenever it is not stepping."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

from hotlap.loading.identity import ByIdentity

OURS = {"fused": True, "foreach": False}
STEP = "step"  # a count per tensor: on its device while fused, else on the host, unless `capturable`

_of_optimizers: ByIdentity[UserSettings] = ByIdentity()  # for other entries, which wrap a step


@contextmanager
def stepping(optimizer: Any) -> Iterator[None]:
    """Show the optimizer as its step will find it, to code that looks at it before the step's hooks have run."""
    chosen = _of_optimizers.get(optimizer)
    if chosen is None or chosen.is_in_step:
        yield
        return
    chosen.step_begins(optimizer)
    try:
        yield
    finally:
        chosen.step_ends()


class UserSettings:
    """The settings by position of the parameter group: loading replaces the groups. Later groups are untouched."""

    def __init__(self, optimizer: Any) -> None:
        self.steps = 1
        self.own = [_choice(group) for group in optimizer.param_groups]
        self._switched: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._counts_moved = False
        _of_optimizers.put(optimizer, self)

    @property
    def is_in_step(self) -> bool:
        return bool(self._switched)

    def step_begins(self, optimizer: Any) -> None:
        if self.is_in_step:
            return
        self._switched = list(self._still_chosen(optimizer.param_groups))
        for group, own in self._switched:
            group.update((key, OURS[key]) for key in own)
        if not self._counts_moved:
            self._counts_moved = True
            for group, _ in self._switched:
                for parameter in group["params"]:
                    _move(optimizer.state.get(parameter), parameter.device)

    def step_ends(self) -> None:
        switched, self._switched = self._switched, []
        for group, own in switched:
            group.update((key, value) for key, value in own.items() if group.get(key) is OURS[key])

    def loaded(self, optimizer: Any) -> None:
        """Adopt the loaded settings as the user's; torch has put the step counts where these settings want them."""
        self.own = [_choice(group) for group in optimizer.param_groups]
        self._counts_moved = False
        self.steps = 1

    def put_back(self, optimizer: Any) -> None:
        self.step_ends()
        _of_optimizers.drop(optimizer)
        for group, _ in self._still_chosen(optimizer.param_groups):
            if _counts_on_host(group):
                for parameter in group["params"]:
                    _move(optimizer.state.get(parameter), "cpu")

    def as_saved(self, saved: Any) -> Any:
        """Put the user's settings into `saved`, whose groups and state are new; each parameter's state is shared."""
        state = saved["state"]
        for group, own in zip(saved["param_groups"], self.own, strict=False):
            if self.is_in_step:
                group.update(own)
            if _counts_on_host(group):
                for key in group["params"]:
                    if STEP in state.get(key, ()):
                        state[key] = dict(state[key])
                        _move(state[key], "cpu")
        return saved

    def _still_chosen(self, groups: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield the groups whose settings the user has not changed since."""
        for group, own in zip(groups, self.own, strict=False):
            if _choice(group) == own:
                yield group, own


def separate(held: dict[str, Any]) -> dict[str, Any]:
    """Copy the containers of an optimizer's attributes, so that they can be written to."""
    groups = [dict(group) for group in held["param_groups"]]
    return {**held, "param_groups": groups, "state": copy(held["state"])}


def _choice(group: dict[str, Any]) -> dict[str, Any]:
    return {key: group[key] for key in OURS if key in group}


def _counts_on_host(group: dict[str, Any]) -> bool:
    return not group.get("fused") and not group.get("capturable")


def _move(state: dict[str, Any] | None, device: Any) -> None:
    """Move the step count to `device`. Host sync if it leaves a GPU."""
    if state and hasattr(state.get(STEP), "to"):
        state[STEP] = state[STEP].to(device)
