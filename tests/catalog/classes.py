"""How far each risk class lets a training differ from the unmodified one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

import torch
from catalog.drawing import TrainingResult

from hotlap.records.plan import Risk

WIDER = 30  # times the effect of one last bit in each weight: an entry rounds at every operation of every step
LEAST = 1e-6  # relative to the value, where a last bit had no effect
NUMERIC = 0.25  # of the mean loss, which is about one: the same recipe, but not the same training


@dataclass(frozen=True)
class Band:
    losses: list[float]  # by step: a difference, once there, stays
    weights: dict[str, float]


def band_of(plain: TrainingResult, nudged: list[TrainingResult]) -> Band:
    """The band is measured on the program itself, with its initial weights moved by one last bit."""
    assert all(result.streams == plain.streams for result in nudged)
    by_run = [_differences(plain, result) for result in nudged]
    apart = [max(map(abs, differences)) for differences in zip(*by_run, strict=True)]
    losses = [
        WIDER * most + LEAST * (1 + abs(loss)) for most, loss in zip(accumulate(apart, max), plain.losses, strict=True)
    ]
    weights = {
        name: WIDER * max(_apart(result.weights[name], value) for result in nudged) + LEAST * (1 + _largest(value))
        for name, value in plain.weights.items()
    }
    return Band(losses, weights)


def assert_in_class(risk: Risk, ours: TrainingResult, plain: TrainingResult, band: Band, label: str) -> None:
    assert ours.lines == plain.lines, f"{label}: its lines are others"
    if risk in (Risk.EXACT, Risk.ROUNDING):
        for number, (state, expected) in enumerate(zip(ours.streams, plain.streams, strict=True)):
            assert state == expected, f"{label}: random stream {number} is elsewhere"
    if risk is Risk.EXACT:
        assert ours.losses == plain.losses, f"{label}: other losses"
        assert all(torch.equal(ours.weights[name], value) for name, value in plain.weights.items()), label
        assert all(_same_state(ours.optimizer[key], plain.optimizer[key]) for key in plain.optimizer), label
    elif risk is Risk.ROUNDING:
        for step, (difference, most) in enumerate(zip(_differences(ours, plain), band.losses, strict=True)):
            assert abs(difference) <= most, f"{label}: losses differ by {difference} at {step}, of {most}"
        for name, most in band.weights.items():
            assert _apart(ours.weights[name], plain.weights[name]) <= most, f"{label}: {name}"
    else:
        assert abs(fmean(ours.losses) - fmean(plain.losses)) <= NUMERIC, label


def _differences(ours: TrainingResult, plain: TrainingResult) -> list[float]:
    return [a - b for a, b in zip(ours.losses, plain.losses, strict=True)]


def _same_state(ours: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == plain.keys() and all(
        ours[name].device == plain[name].device and torch.equal(ours[name], plain[name]) for name in ours
    )


def _apart(ours: torch.Tensor, plain: torch.Tensor) -> float:
    return float((ours.double() - plain.double()).abs().max())


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.double().abs().max())
