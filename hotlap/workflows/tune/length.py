"""Plans how many steps each process of a tune trains, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.errors import BudgetTooSmall, TooShort
from hotlap.records.observation import Observation
from hotlap.records.tune_record import TuneRequest

LEAST_STEPS = 25  # five of them warm-up
USUAL_LEAST, MOST_STEPS = 64, 2000
MOST_TIMES = 8  # times the steps, for what is that much faster
WARMUP = 20  # steps reserved for it
SHARE = 1 / 60  # of the budget for the steps of one process
SHORTEST, LONGEST = 2.0, 20.0  # seconds of those steps
INTO_THE_SECOND, SECOND_SHARE = 1.6, 1 / 24  # epochs, if they take at most this share of the budget
SLOW = 0.5  # seconds: few steps are requested if each takes longer than this
PATIENCE = 5  # times the time expected of the baseline, for a process that compiles
SHORTEST_LIMIT = 120.0  # seconds
FIRST_TRIALS = 8  # processes: the baseline against itself, and one optimisation
STARTING = 0.5  # of the time observing took besides its steps; the rest is hotlap's own
LASTING, SHORT_EPOCH = 10, 3  # times the steps: at most, and if an epoch is shorter
LASTING_SHARE = 0.3  # of the budget, at most
WORTHWHILE = 20  # processes that a budget should have room for, if shorter ones still show something


@dataclass(frozen=True, kw_only=True, slots=True)
class Length:
    steps: int
    step_seconds: float  # of the baseline
    process_seconds: float  # expected of a process of the baseline
    limit: float  # seconds after which a process is ended
    own: int | None = None  # steps of the whole run, if known
    epoch: int | None = None  # steps of an epoch, if known

    def longer(self, steps: int, ratio: float) -> int:
        """Return the steps that take about as long when each is `ratio` times faster; at most those of the run."""
        more = max(steps, min(MOST_STEPS, int(steps * min(MOST_TIMES, ratio))))
        return more if self.own is None else max(steps, min(more, self.own))

    def lasting(self, steps: int) -> int:
        """Return the steps of the last stage.

        These are an epoch or ten times the measured steps, whichever is shorter, but well beyond the measured ones. If
        the whole run is no longer than that, it is all of it, because a program may evaluate and save at its end.
        """
        most = LASTING * steps
        if self.own is not None and self.own <= most:
            return self.own
        return most if self.epoch is None else min(most, max(self.epoch, SHORT_EPOCH * steps))


def length(seen: Observation, request: TuneRequest, observing: float = 0.0) -> Length:
    """Plan the processes from the baseline's steps, the seconds of observing and the budget; raise if nothing fits."""
    step = max(1e-6, seen.mean_step_ms / 1000)
    surely = max(1.0, seen.warmup.seconds)
    start = max(surely, STARTING * (observing - (seen.warmup.steps + seen.steps) * step))
    wanted = request.steps or _planned(step, start, request.budget_seconds, epoch_length(seen))
    own = own_length(seen)
    steps = wanted if own is None else min(wanted, own)
    if steps < LEAST_STEPS:
        raise TooShort(_too_short(steps, own))
    seconds = start + steps * step
    needed = FIRST_TRIALS * (surely + steps * step)
    if needed > request.budget_seconds:
        raise BudgetTooSmall(
            f"a process of {steps} steps takes at least {needed / FIRST_TRIALS:.0f} s, and a tune needs at least "
            f"{FIRST_TRIALS} of them; give it more time: --budget {_minutes(2 * needed)}"
        )
    limit = max(SHORTEST_LIMIT, PATIENCE * seconds)
    return Length(
        steps=steps, step_seconds=step, process_seconds=seconds, limit=limit, own=own, epoch=epoch_length(seen)
    )


def own_length(seen: Observation) -> int | None:
    """Return the steps of the whole run, if it ended on its own while it was observed."""
    return seen.warmup.steps + seen.steps if seen.ended == "program ended" else None


def epoch_length(seen: Observation) -> int | None:
    """Return the steps of one epoch, from the loader that training reads."""
    found = [
        loader.length // loader.batch_size if loader.drop_last else -(-loader.length // loader.batch_size)
        for loader in seen.loaders
        if loader.role == "train" and loader.length and loader.batch_size
    ]
    return max(1, max(found) // max(1, round(seen.batches_per_step))) if found else None


def _planned(step: float, start: float, budget: float, epoch: int | None) -> int:
    """Return the steps of a process. A small budget has shorter processes, as long as they still show something.

    If a second epoch is within reach, the process trains into it, because data is cached from then on.
    """
    seconds = min(LONGEST, max(SHORTEST, budget * SHARE))
    least = USUAL_LEAST if step < SLOW else LEAST_STEPS - WARMUP
    second = int(epoch * INTO_THE_SECOND) if epoch is not None else 0
    if second * step > SECOND_SHARE * budget:
        second = 0
    usual = int(min(MOST_STEPS, max(least, second, seconds / step))) + WARMUP
    fitting = int(max(SHORTEST, budget / WORTHWHILE - start) / step)
    return min(usual, max(LEAST_STEPS, fitting, second))


def _too_short(steps: int, own: int | None) -> str:
    if own is not None and own < LEAST_STEPS:
        return (
            f"the command ends by itself after {own} steps, but {LEAST_STEPS} are needed to measure; "
            "train longer (more epochs, more data)"
        )
    return f"{steps} steps are too few to measure; give at least --steps {LEAST_STEPS}"


def _minutes(seconds: float) -> str:
    return f"{max(1, round(seconds / 60 + 0.5))}m"
