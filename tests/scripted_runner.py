"""A runner without processes or real time: speeds, losses and endings come from a script. For tests and proofs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from hotlap.records.plan import Choice, Outcome, Status
from hotlap.records.trial import Block, EndReason, MetricValue, Sample
from hotlap.records.tune_record import Screening
from hotlap.trial.runner import Spec

Choices: TypeAlias = tuple[Choice, ...]
BLOCKS = 10


def falling_losses(choices: Choices, seed_shift: int, steps: int) -> tuple[float, ...]:
    """Return falling losses that are bit-equal for the same seed, whatever was chosen."""
    chance = random.Random(seed_shift)
    return tuple(math.exp(-step / 50) + 0.02 * chance.random() for step in range(steps))


def everything_applied(choices: Choices) -> tuple[Outcome, ...]:
    return tuple(Outcome(name=choice.name, code="", status=Status.APPLIED, why="scripted") for choice in choices)


@dataclass
class ScriptedRunner:
    """Returns the same sample for the same spec, so that a resumed tune sees what it would have seen."""

    step_seconds: Callable[[Choices], float]
    losses: Callable[[Choices, int, int], tuple[float, ...]] = falling_losses
    endings: Callable[[Spec], tuple[EndReason, str] | None] = lambda spec: None
    outcomes: Callable[[Choices], tuple[Outcome, ...]] = everything_applied
    readings: Callable[[Spec], tuple[MetricValue, ...]] = lambda spec: ()
    own_length: Callable[[Spec], int] | None = None  # steps after which the program ends by itself
    between_processes: float = 0.005  # relative spread
    between_blocks: float = 0.01
    startup_seconds: float = 3.0
    seed: int = 0
    samples_a_step: float = 32.0
    hardware: str | None = None
    torch: str | None = None
    screened: Screening | None = None
    ran: list[Spec] = field(default_factory=list)

    def screen(self, spec: Spec) -> Screening | None:
        return self.screened

    def run(self, spec: Spec) -> Sample:
        self.ran.append(spec)
        chance = random.Random(f"{self.seed} {spec.number}")
        ended, why = self.endings(spec) or (EndReason.MEASURED, "")
        steps = spec.steps if self.own_length is None else min(spec.steps, self.own_length(spec))
        if ended is EndReason.MEASURED and steps < spec.least:
            ended, why = EndReason.TOO_SHORT, f"it ended by itself after {steps} steps; {spec.least} are needed"
        blocks = self._blocks(spec, steps, chance) if ended is EndReason.MEASURED else ()
        losses = self.losses(spec.choices, spec.seed_shift, steps) if ended is EndReason.MEASURED else ()
        losses = tuple(loss * (1 + spec.nudge * step) for step, loss in enumerate(losses))
        return Sample(
            number=spec.number,
            arm=spec.arm,
            choices=spec.choices,
            seed_shift=spec.seed_shift,
            ended=ended,
            why=why,
            warmup_steps=5,
            warmup_seconds=5 * self.step_seconds(spec.choices),
            startup_seconds=self.startup_seconds,
            blocks=blocks,
            losses=losses,
            readings=self.readings(spec),
            outcomes=self.outcomes(spec.choices),
            host_mb=None,
            device_mb=None,
            seconds=self.startup_seconds + steps * self.step_seconds(spec.choices),
            nudge=spec.nudge,
        )

    def _blocks(self, spec: Spec, steps: int, chance: random.Random) -> tuple[Block, ...]:
        luck = math.exp(chance.gauss(0, self.between_processes))
        each = max(1, (steps - 5) // BLOCKS)
        return tuple(
            Block(
                first=5 + index * each,
                steps=each,
                samples=each * self.samples_a_step,
                seconds=each * self.step_seconds(spec.choices) * luck * math.exp(chance.gauss(0, self.between_blocks)),
            )
            for index in range(min(BLOCKS, steps - 5))
        )
