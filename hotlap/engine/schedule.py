"""Learning rates over a phase, known in advance: the rates of a whole epoch go to the device as one table.

A schedule is a function of the phase's progress, so a resumed run needs none of its state. `FromTorch` runs a scheduler
of torch's on a copy of the groups' rates; its state is saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from hotlap.engine.errors import BadRecipe

Floats = NDArray[np.float64]
By = Literal["step", "epoch"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """`by` says how often the rate changes: at each step or at each epoch."""

    by: By = "step"

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise BadRecipe(f"by={self.by!r} for a schedule; use one of {', '.join(get_args(By))}")

    def factors(self, done: Floats) -> Floats:
        """Map how much of the phase is done (0 to 1) to what the rate is multiplied by."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class _ToAnEnd(Schedule):
    """`end` is the share of the rate that is left when the phase ends."""

    end: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        _share_of_the_rate(self, "end")


@dataclass(frozen=True, kw_only=True)
class Linear(_ToAnEnd):
    def factors(self, done: Floats) -> Floats:
        return 1.0 - (1.0 - self.end) * done


@dataclass(frozen=True, kw_only=True)
class Cosine(_ToAnEnd):
    def factors(self, done: Floats) -> Floats:
        return self.end + (1.0 - self.end) * 0.5 * (1.0 + np.cos(math.pi * done))


@dataclass(frozen=True)
class Steps(Schedule):
    """Multiply the rate by `factor` at each of these shares of the phase."""

    at: tuple[float, ...] = (0.5, 0.75)
    _: KW_ONLY
    factor: float = 0.1
    by: By = "epoch"

    def __post_init__(self) -> None:
        super().__post_init__()
        are_shares = isinstance(self.at, list | tuple) and all(
            _is_number(share) and 0 <= share <= 1 for share in self.at
        )
        _require(are_shares, self, "at", "a tuple of shares of the phase, each from 0 to 1, such as (0.5, 0.75)")
        object.__setattr__(self, "at", tuple(float(share) for share in self.at))
        _share_of_the_rate(self, "factor")

    def factors(self, done: Floats) -> Floats:
        passed = (done[:, None] >= np.asarray(self.at)[None, :]).sum(axis=1)
        return np.asarray(self.factor**passed, dtype=np.float64)


@dataclass(frozen=True)
class FromTorch(Schedule):
    """`make(optimizer)` returns a scheduler of torch.optim.lr_scheduler that changes learning rates and nothing else:
    momentum is not cycled. Without `by` it steps as torch documents it: `OneCycleLR` and `CyclicLR`, alone or within
    another, after every optimizer step, any other after every epoch. Steps cost the host some microseconds each, at the
    start of each epoch.
    """

    make: Callable[[torch.optim.Optimizer], Any]
    _: KW_ONLY
    by: By | None = None  # type: ignore[assignment] # None: as torch documents the scheduler

    def __post_init__(self) -> None:
        if self.by is not None:
            super().__post_init__()
        use = "a function of the optimizer, such as lambda optimizer: StepLR(optimizer, 30)"
        _require(callable(self.make), self, "make", use)


def _share_of_the_rate(schedule: Schedule, name: str) -> None:
    value = getattr(schedule, name)
    _require(_is_number(value) and 0 <= value < math.inf, schedule, name, "a number, 0 or more")
    object.__setattr__(schedule, name, float(value))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _require(condition: bool, schedule: Schedule, name: str, use: str) -> None:
    if not condition:
        raise BadRecipe(f"{type(schedule).__name__}({name}={getattr(schedule, name)!r}); use {use}")


class Rates:
    """The learning rates of one phase: one table per epoch, one row per group."""

    def __init__(self, base: Sequence[float], schedule: Schedule | None, warmup: int, epochs: int, steps: int) -> None:
        self.base = np.asarray(base, dtype=np.float64)
        self.schedule, self.warmup, self.epochs, self.steps = schedule, warmup, epochs, steps
        self._shadow = _Shadow(base, schedule, epochs, steps) if isinstance(schedule, FromTorch) else None
        decides = self._shadow or schedule
        self.by = None if decides is None else decides.by

    @property
    def vary(self) -> bool:
        """Whether the rates change within an epoch."""
        return self.warmup > 0 or self.by == "step"

    def table(self, epoch: int) -> Floats:
        """Return the rates as [group, step] for an epoch counted from the start of the phase."""
        first = epoch * self.steps
        numbers = np.arange(first, first + self.steps)
        rates = self._scheduled(epoch, numbers)
        if self.warmup:
            rates = rates * np.minimum(1.0, (numbers + 1) / self.warmup)
        return rates

    def _scheduled(self, epoch: int, numbers: NDArray[np.int64]) -> Floats:
        if self._shadow is not None:
            return self._shadow.table(self.steps)
        if self.schedule is None:
            return np.repeat(self.base[:, None], self.steps, axis=1)
        if self.schedule.by == "step":
            done = numbers / max(self.epochs * self.steps - 1, 1)
        else:
            done = np.full(self.steps, epoch / max(self.epochs - 1, 1))
        factors: Floats = self.base[:, None] * self.schedule.factors(done)[None, :]
        return factors

    def epoch_ended(self, score: float) -> None:
        if self._shadow is not None:
            self._shadow.epoch_ended(score)

    def state(self) -> dict[str, Any]:
        return {} if self._shadow is None else self._shadow.state()

    def load(self, state: dict[str, Any]) -> None:
        if self._shadow is not None and state:
            self._shadow.load(state)


def _with_parts(scheduler: Any) -> Iterator[Any]:
    """Yield the scheduler and those that a SequentialLR or ChainedScheduler is made of."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from _with_parts(part)


def _steps_after_batches(scheduler: Any) -> bool:
    after_batches = (torch.optim.lr_scheduler.OneCycleLR, torch.optim.lr_scheduler.CyclicLR)
    return any(isinstance(part, after_batches) for part in _with_parts(scheduler))


class _Shadow:
    """A scheduler on an optimizer of its own, which has the same rates and trains nothing.

    Its saved state is that of the start of the epoch, from which a resumed run computes the table again.
    """

    def __init__(self, base: Sequence[float], schedule: FromTorch, epochs: int, steps: int) -> None:
        groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": float(rate)} for rate in base]
        # Numbers that no scheduler would set, so that any change to them shows.
        self.optimizer = torch.optim.SGD(groups, momentum=0.4321, weight_decay=0.4321)
        self._fixed = self._all_but_rates()
        self.scheduler = schedule.make(self.optimizer)
        self.by: By = schedule.by or ("step" if _steps_after_batches(self.scheduler) else "epoch")
        self._require_scheduler()
        self._require_rates_alone()
        self._require_steps_enough(epochs * steps if self.by == "step" else epochs)
        self.began = self._now()

    def table(self, steps: int) -> Floats:
        self.began = self._now()
        if self.by == "epoch":
            return np.repeat(self._rates()[:, None], steps, axis=1)
        columns = []
        for _ in range(steps):
            columns.append(self._rates())
            self.optimizer.step()
            self.scheduler.step()
        self._require_rates_alone()
        return np.stack(columns, axis=1)

    def epoch_ended(self, score: float) -> None:
        if self.by == "epoch":
            self.optimizer.step()
            self.scheduler.step(score) if self._needs_score() else self.scheduler.step()
            self._require_rates_alone()
        self.began = self._now()

    def state(self) -> dict[str, Any]:
        return self.began

    def load(self, state: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state["scheduler"])
        for group, rate in zip(self.optimizer.param_groups, state["rates"], strict=True):
            group["lr"] = rate

    def _now(self) -> dict[str, Any]:
        return {"scheduler": dict(self.scheduler.state_dict()), "rates": self._rates().tolist()}

    def _rates(self) -> Floats:
        return np.asarray([float(group["lr"]) for group in self.optimizer.param_groups], dtype=np.float64)

    def _all_but_rates(self) -> list[dict[str, Any]]:
        names = set(self.optimizer.defaults) - {"lr"}
        return [{name: group[name] for name in names} for group in self.optimizer.param_groups]

    def _needs_score(self) -> bool:
        return isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)

    def _require_scheduler(self) -> None:
        """Require a torch scheduler of this optimizer: the rates of another one would never change these."""
        kind = type(self.scheduler).__name__
        if not isinstance(self.scheduler, torch.optim.lr_scheduler.LRScheduler):
            raise BadRecipe(
                f"make= of FromTorch returned {kind}; return a torch scheduler, such as StepLR(optimizer, 30)"
            )
        if self.scheduler.optimizer is not self.optimizer:
            raise BadRecipe(
                f"make= of FromTorch returned a {kind} of another optimizer; create it for the one that make= is given"
            )
        if self.by == "step" and self._needs_score():
            raise BadRecipe(f'{kind} follows the score of an epoch; use FromTorch(make, by="epoch")')

    def _require_steps_enough(self, needed: int) -> None:
        """Refuse a cycle that is shorter than the phase, which torch would only report once it is over."""
        total = getattr(self.scheduler, "total_steps", None)
        if isinstance(self.scheduler, torch.optim.lr_scheduler.OneCycleLR) and total is not None and total < needed:
            raise BadRecipe(
                f"OneCycleLR ends after total_steps={total}, but the phase has {needed} {self.by}s; "
                f"create it with total_steps={needed}"
            )

    def _require_rates_alone(self) -> None:
        """Refuse a scheduler that changes anything else: only rates reach the optimizer that trains."""
        for was, now in zip(self._fixed, self._all_but_rates(), strict=True):
            if changed := sorted(name for name in was if was[name] != now[name]):
                raise BadRecipe(
                    f"{type(self.scheduler).__name__} changes {', '.join(changed)}, but FromTorch only follows "
                    "learning rates; create it with cycle_momentum=False, or use a scheduler that changes nothing else"
                )
