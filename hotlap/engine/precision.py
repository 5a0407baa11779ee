"""Which precision a step is fastest in, measured on the step itself: on copies, by the trainer that will train.

What is more exact wins unless the other is clearly faster. A lower precision may train worse, which a gate compares.
"""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hotlap.engine.checks import require_repeatable
from hotlap.engine.data.iterables import seeded
from hotlap.engine.data.sources import is_resident
from hotlap.engine.errors import BadRecipe
from hotlap.engine.forwards import forwards_replaced
from hotlap.engine.order import order_of
from hotlap.engine.recipe import LOW, Precision, PrecisionGate, Recipe
from hotlap.engine.recurrent import carrying, recurrent_layers
from hotlap.engine.seam import AnySource, Batch
from hotlap.engine.twin import AnyTrainer, twin_of

CLEARLY = 0.95  # of the time of a more exact step
SECONDS = 0.3  # of training for each precision
MOST_STEPS = 200
HELD_BATCHES = 4  # of data that is read during the training
FAR_SLOWER = 3.0  # than float32: not worth a whole step
STUDENT = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02, 7: 1.94, 8: 1.89, 9: 1.86, 10: 1.83}  # 95 %, one side, by seeds


@dataclass(frozen=True)
class PrecisionTrial:
    """How long a step takes in a precision, with some modules in float32; or why that was not measured to the end."""

    precision: Precision
    full: tuple[str, ...] = ()
    seconds: float = math.inf
    why_not: str | None = None

    @property
    def name(self) -> str:
        return self.precision + (" with recurrent layers in float32" if self.full else "")

    def __str__(self) -> str:
        return f"{self.name} {1000 * self.seconds:.3g} ms" + (f", left out: {self.why_not}" if self.why_not else "") \
            if math.isfinite(self.seconds) else f"{self.name} left out: {self.why_not}"  # fmt: skip


@dataclass(frozen=True)
class Precisions:
    """What was measured, from the most exact to the least, and the one to use."""

    trials: tuple[PrecisionTrial, ...]

    @property
    def chosen(self) -> PrecisionTrial:
        left = [trial for trial in self.trials if trial.why_not is None]
        if not left:
            raise BadRecipe(f"a step can be trained in no precision: {'; '.join(map(str, self.trials))}")
        limit = min(trial.seconds for trial in left)
        return next(trial for trial in left if CLEARLY * trial.seconds <= limit)

    @property
    def line(self) -> str:
        return f"precision: {self.chosen.name} ({'; '.join(map(str, self.trials))})"


def tried(trainer: AnyTrainer, source: AnySource) -> Precisions:
    """Measure a training step in each precision on copies of model and optimizer; random streams do not change.

    With a gate in the recipe, the fastest is compared with float32, and left out if it may train worse.
    """
    _require_measurable(trainer)
    with seeded(trainer.recipe.seed):
        data = source if is_resident(source) else Held(trainer, source)
        trials = tuple(_measured(trainer, data, trial) for trial in candidates(trainer.model, trainer.device))
        found = Precisions(trials)
        gate = trainer.recipe.precision_gate
        while gate is not None and found.chosen.precision in LOW:
            why = _why_worse(trainer, source, found.chosen, gate)
            if why is None:
                break
            failed = found.chosen
            found = Precisions(tuple(replace(t, why_not=why) if t is failed else t for t in found.trials))
    return found


def settled(trainer: AnyTrainer, source: AnySource, state: Mapping[str, Any] | None) -> Recipe:
    """Return the recipe with the precision that a resumed run was trained in, or else the best one, which is said."""
    saved = None if state is None else state.get("precision")
    if saved is not None:
        return exactly(trainer.recipe, PrecisionTrial(saved[0], tuple(saved[1])))
    found = tried(trainer, source)
    trainer.say(found.line)
    return exactly(trainer.recipe, found.chosen)


def exactly(recipe: Recipe, trial: PrecisionTrial) -> Recipe:
    return replace(recipe, precision=trial.precision, full_precision=trial.full, precision_gate=None)


def _require_measurable(trainer: AnyTrainer) -> None:
    if trainer.processes is not None:
        raise BadRecipe(
            'precision="auto" measures in one process; try it there, and give several the one that it chooses'
        )
    if any(carrying(trainer.model)):
        raise BadRecipe('precision="auto" cannot measure a model that carries a state from batch to batch; choose one')


def candidates(model: nn.Module, device: torch.device) -> list[PrecisionTrial]:
    """Return what may be fastest, the most exact first. TF32 is a matter of GPUs."""
    tf32: list[PrecisionTrial] = [PrecisionTrial("tf32")] if device.type == "cuda" else []
    layers = set(map(id, recurrent_layers(model)))
    names = tuple(name for name, module in model.named_modules() if id(module) in layers)
    found = [PrecisionTrial("fp32"), *tf32]
    for low in ("bf16", "fp16"):
        found += [PrecisionTrial(low, names)] if names else []
        found += [PrecisionTrial(low)]
    return found


class Held:
    """The first batches of data that is read during the training, again and again."""

    def __init__(self, trainer: AnyTrainer, source: AnySource) -> None:
        recipe, size = trainer.recipe, trainer.recipe.batch_size
        order = order_of(source, recipe.seed, 0, torch.device("cpu"), recipe.shuffle)
        count = max(min(HELD_BATCHES, len(order) // size), 1)
        given = source.batches(order[: count * size], size, trainer.device, False)  # type: ignore[union-attr]
        self.held = list(given)
        self.rows = min(count * size, len(order))

    def batches(self, order: Tensor, batch_size: int, device: torch.device, drop_last: bool) -> Iterator[Batch]:
        for number in range(-(-len(order) // batch_size)):
            yield self.held[number % len(self.held)]


def _measured(trainer: AnyTrainer, data: AnySource, trial: PrecisionTrial) -> PrecisionTrial:
    """Time whole steps; a precision that is far slower than float32 is left out before a step of full size."""
    try:
        if trial.precision in LOW and (why := _why_far_slower(trainer, data, trial)):
            return replace(trial, why_not=why)
        once = _fitted(trainer, data, trial, 2)
        steps = min(max(int(SECONDS / 2 / max(once, 1e-6)), 2), MOST_STEPS)
        return replace(trial, seconds=_fitted(trainer, data, trial, steps))
    except RuntimeError as error:  # an operation that torch does not have in it, or too little memory
        if trial.precision == "fp32" and not isinstance(error, torch.OutOfMemoryError):
            raise
        return replace(trial, why_not=str(error).strip().splitlines()[0])
    finally:
        if trainer.device.type == "cuda":
            gc.collect()  # graphs of the copies, whose memory the next one needs


def _why_far_slower(trainer: AnyTrainer, data: AnySource, trial: PrecisionTrial) -> str | None:
    """Try a product, then a step of few rows: a step of full size could take minutes."""
    slower = times_slower(trainer.device, LOW[trial.precision])
    if slower > FAR_SLOWER:
        return f"a product of matrices takes {slower:.0f} times as long"
    rows = _few_rows(trainer, data)
    slower = _step_seconds(trainer, rows, trial) / _step_seconds(trainer, rows)
    return f"a step of few rows takes {slower:.0f} times as long" if slower > FAR_SLOWER else None


def times_slower(device: torch.device, dtype: torch.dtype) -> float:
    """Return how many times as long as in float32 a small product takes: a hundred where a processor lacks the type."""
    return _product_seconds(device, dtype) / _product_seconds(device, torch.float32)


def _product_seconds(device: torch.device, dtype: torch.dtype) -> float:
    one = torch.ones(128, 128, device=device, dtype=dtype)
    return _fastest(lambda: one @ one, device)


def _fastest(work: Callable[[], Any], device: torch.device) -> float:
    """Return the shortest of some turns, the first left out; one turn if that takes long already. Host syncs."""
    best, ends = math.inf, time.perf_counter() + SECONDS
    for turn in range(10):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started) if turn else math.inf
        if time.perf_counter() > ends:
            return min(best, time.perf_counter() - started)
    return best


def _few_rows(trainer: AnyTrainer, data: AnySource) -> Batch:
    """Return two rows of a batch: one is too few for norms over a batch."""
    size = min(2, data.rows)
    if is_resident(data):
        return data.gather(torch.arange(size, device=data.device))
    batch = next(iter(data.batches(torch.arange(data.rows), trainer.recipe.batch_size, trainer.device, False)))  # type: ignore[union-attr]
    is_by_row = all(len(tensor) == len(batch[0]) for tensor in batch)
    return tuple(tensor[:size] for tensor in batch) if is_by_row else batch


def _step_seconds(trainer: AnyTrainer, batch: Batch, trial: PrecisionTrial | None = None) -> float:
    """Time forward and backward of a copy, without the optimizer."""
    twin = twin_of(trainer, replace(exactly(trainer.recipe, trial or PrecisionTrial("fp32")), phases=()))
    twin._move()

    def work() -> None:
        with twin.precisely():
            twin.forward(batch)[0]["loss"].backward()  # type: ignore[no-untyped-call]

    return _fastest(work, trainer.device)


def _fitted(trainer: AnyTrainer, data: AnySource, trial: PrecisionTrial, steps: int) -> float:
    """Train a copy; return the seconds of a step in the faster of two epochs, the first left out."""
    recipe = replace(exactly(trainer.recipe, trial), steps_per_epoch=steps)
    history = _short(trainer, recipe, data, 3)
    fastest: float = min(record.seconds for record in history.epochs[1:])
    return fastest / steps


def _short(trainer: AnyTrainer, recipe: Recipe, data: AnySource, epochs: int) -> Any:
    phases = tuple(replace(phase, epochs=epochs, schedule=None) for phase in recipe.phases[:1])
    plain = replace(recipe, phases=phases, schedule=None, warmup=0, checkpoints=None, monitor=None, patience=None)
    return twin_of(trainer, replace(plain, nan_guard=False)).fit(data, epochs=epochs)


# Quality


def _why_worse(trainer: AnyTrainer, source: AnySource, trial: PrecisionTrial, gate: PrecisionGate) -> str | None:
    """Return why this precision may train worse than float32 by more than the margin, or None: it does not."""
    require_repeatable(source, trainer.model)
    apart = []
    for seed in range(gate.seeds):
        own = replace(trainer.recipe, seed=trainer.recipe.seed + seed, steps_per_epoch=max(gate.steps // 4, 1))
        pair = [exactly(own, compared) for compared in (PrecisionTrial("fp32"), trial)]
        exact, found = (_late_loss(trainer, recipe, source) for recipe in pair)
        apart.append((found - exact) / max(abs(exact), 1e-12))
    worst = upper_bound(apart)
    if worst <= gate.margin:
        return None
    return f"its loss may be {worst:.1%} higher after {gate.steps} steps, over {gate.seeds} seeds"


def _late_loss(trainer: AnyTrainer, recipe: Recipe, source: AnySource) -> float:
    """Train a copy in four parts; return the mean training loss of the last two."""
    history = _short(trainer, recipe, source, 4)
    return statistics.fmean(record.loss for record in history.epochs[2:])


def upper_bound(values: list[float]) -> float:
    """Return what the mean of these stays below with 95 % confidence; infinity where one is not finite."""
    if not all(map(math.isfinite, values)):
        return math.inf
    return statistics.fmean(values) + STUDENT[len(values)] * statistics.stdev(values) / math.sqrt(len(values))


@contextlib.contextmanager
def in_float32(model: nn.Module, names: tuple[str, ...], device: torch.device) -> Iterator[None]:
    """Compute these modules in float32 within a step of lower precision."""
    known = dict(model.named_modules())
    if missing := [name for name in names if name not in known]:
        raise BadRecipe(
            f"full_precision names {missing[0]!r}, which the model does not have; use names from model.named_modules()"
        )
    with forwards_replaced([(known[name], _uncast(known[name].forward, device.type)) for name in names]):
        yield


def _uncast(forward: Callable[..., Any], kind: str) -> Callable[..., Any]:
    from hotlap.engine.update import in_full

    def computed(*given: Any, **named: Any) -> Any:
        with torch.autocast(kind, enabled=False):
            return forward(*in_full(given), **in_full(named))

    return computed
