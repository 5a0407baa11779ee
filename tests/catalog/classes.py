"""What a risk class allows a training to differ by."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

import torch
from catalog.drawing import Left

from hotlap.records.plan import Risk

WIDER = 30  # than what a last bit in each weight makes: an entry rounds at every operation of every step
LEAST = 1e-6  # of the value, where a last bit made nothing
NUMERIC = 0.25  # of the mean loss, which is about one: a training of the same recipe, not the same training


@dataclass(frozen=True)
class Band:
    losses: list[float]  # by step: what came to be different stays so
    weights: dict[str, float]


def band_of(plain: Left, nudged: list[Left]) -> Band:
    """From the program itself with its first weights moved by a last bit."""
    assert all(one.streams == plain.streams for one in nudged)
    all_of_them = [_differences(plain, one) for one in nudged]
    apart = [max(map(abs, differences)) for differences in zip(*all_of_them, strict=True)]
    losses = [
        WIDER * most + LEAST * (1 + abs(loss)) for most, loss in zip(accumulate(apart, max), plain.losses, strict=True)
    ]
    weights = {
        name: WIDER * max(_apart(one.weights[name], value) for one in nudged) + LEAST * (1 + _largest(value))
        for name, value in plain.weights.items()
    }
    return Band(losses, weights)


def assert_in_class(risk: Risk, ours: Left, plain: Left, band: Band, what: str) -> None:
    assert ours.told == plain.told, f"{what}: its lines are others"
    if risk in (Risk.EXACT, Risk.ROUNDING):
        for number, (one, other) in enumerate(zip(ours.streams, plain.streams, strict=True)):
            assert one == other, f"{what}: random stream {number} is elsewhere"
    if risk is Risk.EXACT:
        assert ours.losses == plain.losses, f"{what}: other losses"
        assert all(torch.equal(ours.weights[name], value) for name, value in plain.weights.items()), what
        assert all(_same_state(ours.optimizer[key], plain.optimizer[key]) for key in plain.optimizer), what
    elif risk is Risk.ROUNDING:
        for step, (difference, most) in enumerate(zip(_differences(ours, plain), band.losses, strict=True)):
            assert abs(difference) <= most, f"{what}: losses differ by {difference} at {step}, of {most}"
        for name, most in band.weights.items():
            assert _apart(ours.weights[name], plain.weights[name]) <= most, f"{what}: {name}"
    else:
        assert abs(fmean(ours.losses) - fmean(plain.losses)) <= NUMERIC, what


def _differences(one: Left, other: Left) -> list[float]:
    return [a - b for a, b in zip(one.losses, other.losses, strict=True)]


def _same_state(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].device == other[name].device and torch.equal(one[name], other[name]) for name in one
    )


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def _largest(one: torch.Tensor) -> float:
    return float(one.double().abs().max())
