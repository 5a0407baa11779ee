"""A run as a checkpoint holds it, and back: a resumed run continues to the bit as if it had never ended."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from hotlap.engine.checkpoints import FORMAT, PlainList, State
from hotlap.engine.choice import Mode
from hotlap.engine.errors import CheckpointOfAnotherModel
from hotlap.engine.frozen_modules import all_names
from hotlap.engine.order import seed_of
from hotlap.engine.parts import Parts
from hotlap.engine.processor import Way
from hotlap.engine.recipe import Recipe
from hotlap.engine.records import EpochRecord
from hotlap.engine.resident_steps import ResidentSteps
from hotlap.engine.schedule import Rates
from hotlap.engine.several import name_of
from hotlap.engine.snapshot import random_states, seed_streams, set_random_states
from hotlap.engine.streamed_steps import StreamedSteps
from hotlap.engine.update import Average, Tally

OWN = ("lr", "params", "fused", "foreach", "capturable", "initial_lr")  # settings that a checkpoint does not decide
SETTINGS = (bool, int, float, tuple, list)


@dataclass
class Position:
    """Where a run is: `epoch` and `window` are the next to be trained, `steps` counts those of the epochs before."""

    epoch: int = 0
    window: int = 0
    steps: int = 0
    best: float | None = None
    best_epoch: int | None = None
    idle: int = 0  # epochs since the best
    stopped_early: bool = False
    stopped_by: str | None = None  # the callback that asked for it
    monitor: str | None = None  # what the best is the best of
    ranking: list[tuple[float, int]] = field(default_factory=list)  # score and number of the best epochs
    primed: bool = False
    mode: Mode | None = None
    rate_scale: float = 1.0  # by which callbacks multiplied the learning rates
    schedule: dict[str, Any] = field(default_factory=dict)
    epochs: list[EpochRecord] = field(default_factory=list)

    def records(self) -> PlainList:
        """Return the records as dicts, each made once: there may be thousands, with a checkpoint after each."""
        known = self.__dict__.setdefault("_records", [])
        known += [asdict(record) for record in self.epochs[len(known) :]]
        return PlainList(known)


class Resumable(Protocol):
    """The part of a run that is saved."""

    parts: Parts
    recipe: Recipe
    place: Position
    tally: Tally
    average: Average | None
    rates: Rates
    steps: ResidentSteps | StreamedSteps


def state_of(run: Resumable) -> State:
    parts, tally, steps = run.parts, run.tally, run.steps
    place = {attribute.name: getattr(run.place, attribute.name) for attribute in fields(run.place)}
    place |= {"primed": steps.primed, "schedule": run.rates.state(), "epochs": run.place.records()}
    mode = steps.mode or steps.wanted  # before its first whole step a resumed run only has its old mode
    place["mode"] = None if mode is None else as_list(mode)
    optimizer = parts.optimizer.state_dict()
    for group, rate in zip(optimizer["param_groups"], parts.base_rates, strict=True):
        group["lr"] = rate  # the schedule's progress follows from the place
    return {
        "format": FORMAT,
        "place": place,
        "about": about(run),
        "precision": [run.recipe.precision, list(run.recipe.full_precision)],
        "model": dict(parts.model.state_dict()),
        "buffers": passing_buffers(parts.model),
        "loss": {} if parts.beside is None else dict(parts.beside.state_dict()),
        "optimizer": optimizer,
        "scaler": {} if parts.scaler is None else parts.scaler.state_dict(),  # host sync with fp16 alone
        "average": {} if run.average is None else averaged(parts.model, run.average),
        "average_sums": {} if run.average is None else averaged_sums(parts.model, run.average),
        "losses": {"names": list(tally.names), "rows": tally.losses[: run.place.window]},
        "train_metrics": _totals(parts),
        "random": random_states(),
        "random_of_all": [] if parts.processes is None else parts.processes.gathered(random_states()),
    }


def _totals(parts: Parts) -> dict[str, torch.Tensor]:
    """Return the totals of the training's metrics, of all processes together."""
    totals = {name: metric.totals for name, metric in parts.train_metrics.items()}
    if parts.processes is not None:
        totals = {name: total.clone() for name, total in totals.items()}
        parts.processes.add_up(list(totals.values()))
    return totals


def averaged(model: nn.Module, average: Average) -> dict[str, torch.Tensor]:
    """Return the averaged weights by the names of state_dict."""
    return _by_name(model, average, average.values())


def averaged_sums(model: nn.Module, average: Average) -> dict[str, torch.Tensor]:
    """Return what the averages are computed from; nothing where the two are the same."""
    return {} if average.share in (0.0, 1.0) else _by_name(model, average, average.tensors)


def _by_name(model: nn.Module, average: Average, tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    values = {id(parameter): value for parameter, value in zip(average.parameters, tensors, strict=True)}
    return {name: values[id(parameter)] for name, parameter in all_names(model) if id(parameter) in values}


def load_average(model: nn.Module, average: Average, state: State) -> None:
    """Load the averages; a weight that an older checkpoint does not average, such as a complex one, starts its own."""
    saved, sums = state["average"], state.get("average_sums", {})
    average.updates = state["place"]["steps"] + state["place"]["window"]
    with torch.no_grad():
        for own, parameter in zip(average.tensors, average.parameters, strict=True):
            own.copy_(parameter * average.share)
        for name, own in _by_name(model, average, average.tensors).items():
            if name in sums:
                own.copy_(sums[name])
            elif name in saved:
                own.copy_(saved[name] * average.share)


def as_list(mode: Mode) -> list[Any]:
    return [mode.graph, mode.compiled, list(mode.way), mode.forked, mode.regions, mode.autotuned]


def passing_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that state_dict leaves out, such as a state carried from batch to batch."""
    saved = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name not in saved}


def about(run: Resumable) -> dict[str, Any]:
    geometry, recipe = run.parts.geometry, run.recipe
    return {
        "rows": run.parts.train.rows,
        "batch_size": geometry.batch_size,
        "accumulate": geometry.accumulate,
        "drop_last": recipe.drop_last,
        "shuffle": recipe.shuffle,
        "steps_per_epoch": recipe.steps_per_epoch,
        "seed": recipe.seed,
        "ema": recipe.ema,
        "optimizer": name_of(run.parts.optimizer),
    }


def load_into(run: Resumable, state: State, path: Path) -> Position:
    parts = run.parts
    require_same_model(parts.model, state["model"], path)
    _require_same_training(run, state, path)
    _require_same_groups(parts.optimizer, state["optimizer"], path)
    parts.model.load_state_dict(state["model"])
    for name, own in passing_buffers(parts.model).items():
        if name in state["buffers"] and state["buffers"][name].shape == own.shape:
            own.copy_(state["buffers"][name])
    if parts.beside is not None and "loss" in state:  # older checkpoints hold no loss
        require_same_model(parts.beside, state["loss"], path, "loss")
        parts.beside.load_state_dict(state["loss"])
    _report_settings(run, state["optimizer"])
    parts.optimizer.load_state_dict(state["optimizer"])
    _lay_out(parts.optimizer)
    if parts.scaler is not None and state["scaler"]:
        parts.scaler.load_state_dict(state["scaler"])
    if run.average is not None:
        load_average(parts.model, run.average, state)
    _load_tallies(run, state)
    _continue_random_streams(parts, state)
    return _place(state["place"])


def _continue_random_streams(parts: Parts, state: State) -> None:
    """Continue each process's own streams; another number of processes than before begins new ones."""
    processes, of_all = parts.processes, state.get("random_of_all", [])
    if processes is None:
        set_random_states(state["random"])
    elif len(of_all) == processes.count:
        set_random_states(of_all[processes.rank])
    else:
        place = state["place"]
        seed_streams(seed_of(parts.recipe.seed, place["steps"] + place["window"]) + processes.rank)


def _require_same_groups(optimizer: torch.optim.Optimizer, saved: State, path: Path) -> None:
    here, there = (
        [len(group["params"]) for group in groups] for groups in (optimizer.param_groups, saved["param_groups"])
    )
    if here != there:
        raise CheckpointOfAnotherModel(
            f"{path} has an optimizer over groups of {there} parameters, but this run's has {here}; "
            "resume with the same groups"
        )


def _report_settings(run: Resumable, saved: State) -> None:
    """Report the settings that the checkpoint decides: all of the optimizer's but the learning rate."""
    for here, there in zip(run.parts.optimizer.param_groups, saved["param_groups"], strict=True):
        for name, value in there.items():
            own = here.get(name, value)
            if name not in OWN and type(own) in SETTINGS and type(value) in SETTINGS and own != value:
                run.parts.say(f"the optimizer uses {name}={value} from the checkpoint; {own} was given")


def _lay_out(optimizer: torch.optim.Optimizer) -> None:
    """Lay out moments like their weights, also from a checkpoint that has them in another order of dimensions."""
    for parameter, state in optimizer.state.items():
        alike = {name: entry for name, entry in state.items() if getattr(entry, "shape", None) == parameter.shape}
        for name, value in alike.items():
            if value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)


def _load_tallies(run: Resumable, state: State) -> None:
    names, rows = state["losses"]["names"], state["losses"]["rows"]
    if names:
        run.tally.name(names)
        run.tally.losses[: len(rows)].copy_(rows)
    holds = run.parts.processes is None or run.parts.processes.is_first  # the totals of all
    for name, totals in state["train_metrics"].items():
        if name in run.parts.train_metrics:
            run.parts.train_metrics[name].totals.copy_(totals if holds else torch.zeros_like(totals))


def _place(saved: dict[str, Any]) -> Position:
    epochs = [EpochRecord(**record) for record in saved["epochs"]]
    mode = saved["mode"]
    if mode is not None:
        graph, compiled, way, *others = mode  # forks and the like, which older checkpoints do not have
        mode = Mode(graph, compiled, Way(*way), *others)
    return Position(**{**saved, "epochs": epochs, "mode": mode})


def require_same_model(model: nn.Module, saved: dict[str, torch.Tensor], path: Path, what: str = "model") -> None:
    own = {name: tuple(value.shape) for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    theirs = {name: tuple(value.shape) for name, value in saved.items() if isinstance(value, torch.Tensor)}
    if own == theirs:
        return
    differing = [name for name in {**own, **theirs} if own.get(name) != theirs.get(name)]
    first = differing[0]
    raise CheckpointOfAnotherModel(
        f"{path} is for another {what}: {first} is {theirs.get(first, 'missing')} there "
        f"and {own.get(first, 'missing')} here ({len(differing)} differ)"
    )


def _require_same_training(run: Resumable, state: State, path: Path) -> None:
    """Require the same training: every setting within an epoch; after whole ones the data and batches may change."""
    here, there = about(run), state["about"]
    must = list(here) if state["place"]["window"] else ["optimizer", "ema"]
    for name in must:
        if here[name] != there.get(name, here[name]):  # older checkpoints do not hold all of them
            raise CheckpointOfAnotherModel(
                f"{path} was trained with {name} {there[name]}, but this run has {here[name]}; resume with the same"
            )
