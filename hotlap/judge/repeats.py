"""Processes of the same program, seed and length: whatever differs between them is the program's own doing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from hotlap.judge.facts import Fact
from hotlap.judge.power import student
from hotlap.records.traces import Fingerprint
from hotlap.records.trial import EndReason, Sample, Trial

LEAST_MULTIPLE = 4.0  # times the difference between two runs of the baseline
FLOOR = 2.0**-16  # of the size: how far float32 kernels from different libraries differ

Facts = Callable[[Sample], Iterable[Fact]]
Prints = Callable[[Sample], Iterable[Fingerprint]]


def length(sample: Sample) -> int:
    return len(sample.losses) or sample.warmup_steps + sum(block.steps for block in sample.blocks)


def program(sample: Sample) -> frozenset[tuple[str, str | None]]:
    return frozenset((choice.name, choice.value) for choice in sample.choices)


class RepeatedRuns:
    """All processes, in this trial and others, that ran `trial.base` or the bare baseline."""

    def __init__(self, trial: Trial, noise: Trial | None, earlier: Sequence[Sample]) -> None:
        others = noise.samples if noise is not None and noise is not trial else ()
        samples = [*trial.of("base"), *others, *earlier]
        self._samples = [
            sample for sample in samples if sample.ended == EndReason.MEASURED and sample.traces is not None
        ]
        self._base = frozenset((choice.name, choice.value) for choice in trial.base)

    def like(self, new: Sample) -> Sample | None:
        """Return the process to compare `new` with: same seed, same number of steps, not nudged."""
        for sample in self._samples:
            same = program(sample) == self._base and sample.seed_shift == new.seed_shift and not sample.nudge
            if same and length(sample) == length(new):
                return sample
        return None

    @property
    def repeat_losses(self) -> bool:
        """Whether alike processes have the same losses, bit for bit."""
        return all(sample.losses == other.losses for sample, other in self.pairs())

    def pairs(self, nudged: bool = False) -> Iterator[tuple[Sample, Sample]]:
        groups: dict[Any, list[Sample]] = defaultdict(list)
        for sample in self._samples:
            if nudged or not sample.nudge:
                groups[program(sample), sample.seed_shift, length(sample)].append(sample)
        for group in groups.values():
            yield from combinations(sorted(group, key=lambda sample: sample.nudge), 2)


class Stability:
    """The classes of facts on which two alike processes agree."""

    def __init__(self, unchanged: RepeatedRuns, facts: Facts) -> None:
        self.unstable: set[str] = set()
        self._seen: set[str] = set()
        self._lengths: set[int] = set()
        self.wild = 0  # lines that only one of two alike processes has
        for sample, other in unchanged.pairs():
            self._lengths.add(length(sample))
            left, right = by_name(facts(sample)), by_name(facts(other))
            self._seen |= {fact.kind for fact in (*left.values(), *right.values())}
            apart = [name for name in {**left, **right} if _value(left, name) != _value(right, name)]
            self.unstable |= {(left.get(name) or right[name]).kind for name in apart}
            self.wild = max(
                self.wild, sum(name not in left for name in apart), sum(name not in right for name in apart)
            )

    def knows(self, fact: Fact, steps: int) -> bool:
        """Whether the baseline is known to repeat this fact; a fact that no alike process had is repeatably absent."""
        return fact.kind in self._seen or steps in self._lengths


def by_name(facts: Iterable[Fact]) -> dict[str, Fact]:
    return {fact.name: fact for fact in facts}


def _value(facts: Mapping[str, Fact], name: str) -> str | None:
    return facts[name].value if name in facts else None


class Reference:
    """Measures how far apart alike processes are, nudged or not, by the name of a fingerprint and their length."""

    def __init__(self, unchanged: RepeatedRuns, prints: Prints) -> None:
        self._furthest: dict[tuple[int, str], float] = {}
        self._pairs: dict[int, int] = defaultdict(int)
        for sample, other in unchanged.pairs(nudged=True):
            if sample.nudge or not (other.nudge or _any_apart(prints(sample), prints(other))):
                continue
            steps = length(sample)
            self._pairs[steps] += 1
            left = {fingerprint.name: fingerprint for fingerprint in prints(sample)}
            for right in prints(other):
                if right.name in left:
                    far = apart(left[right.name], right)
                    self._furthest[steps, right.name] = max(far, self._furthest.get((steps, right.name), 0.0))

    def pairs(self, steps: int) -> int:
        return self._pairs[steps]

    def allowed(self, base: Fingerprint, steps: int) -> float:
        multiple = max(LEAST_MULTIPLE, student(max(1, self._pairs[steps]), 0.99))
        return max(multiple * self._furthest.get((steps, base.name), 0.0), FLOOR * base.norm)


def _any_apart(fingerprints: Iterable[Fingerprint], others: Iterable[Fingerprint]) -> bool:
    return [fingerprint.digest for fingerprint in fingerprints] != [fingerprint.digest for fingerprint in others]


def apart(fingerprint: Fingerprint, other: Fingerprint) -> float:
    """Estimate the distance between the tensors behind two fingerprints."""
    if fingerprint.digest == other.digest:
        return 0.0
    if len(fingerprint.sketch) != len(other.sketch):
        return math.inf
    return math.sqrt(sum((left - right) ** 2 for left, right in zip(fingerprint.sketch, other.sketch, strict=True)))


def moved(fingerprint: Fingerprint) -> float:
    """Return how far a tensor moved since the first step; its size if its start is not known."""
    if not fingerprint.start:
        return fingerprint.norm
    return math.sqrt(
        sum((left - right) ** 2 for left, right in zip(fingerprint.sketch, fingerprint.start, strict=True))
    )
