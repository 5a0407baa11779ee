"""Processes of one program with one seed and one length: what differs between them is the program's own."""

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

LEAST_MULTIPLE = 4.0  # of what the baseline differs from itself by
FLOOR = 2.0**-16  # of the size: what float32 kernels of different makers differ by

Facts = Callable[[Sample], Iterable[Fact]]
Prints = Callable[[Sample], Iterable[Fingerprint]]


def length(sample: Sample) -> int:
    return len(sample.losses) or sample.warmup_steps + sum(block.steps for block in sample.blocks)


def program(sample: Sample) -> frozenset[tuple[str, str | None]]:
    return frozenset((choice.name, choice.value) for choice in sample.choices)


class RepeatedRuns:
    """All processes that ran what `trial.base` is or the baseline, in this trial and others."""

    def __init__(self, trial: Trial, noise: Trial | None, earlier: Sequence[Sample]) -> None:
        others = noise.samples if noise is not None and noise is not trial else ()
        samples = [*trial.of("base"), *others, *earlier]
        self._samples = [
            sample for sample in samples if sample.ended == EndReason.MEASURED.value and sample.traces is not None
        ]
        self._base = frozenset((choice.name, choice.value) for choice in trial.base)

    def like(self, new: Sample) -> Sample | None:
        """What `new` is to be compared with: the same seed, as many steps, as it is."""
        for sample in self._samples:
            same = program(sample) == self._base and sample.seed_shift == new.seed_shift and not sample.nudge
            if same and length(sample) == length(new):
                return sample
        return None

    def pairs(self, nudged: bool = False) -> Iterator[tuple[Sample, Sample]]:
        groups: dict[Any, list[Sample]] = defaultdict(list)
        for sample in self._samples:
            if nudged or not sample.nudge:
                groups[program(sample), sample.seed_shift, length(sample)].append(sample)
        for group in groups.values():
            yield from combinations(sorted(group, key=lambda sample: sample.nudge), 2)


class Stability:
    """Which classes of facts two alike processes agree on."""

    def __init__(self, unchanged: RepeatedRuns, facts: Facts) -> None:
        self.unstable: set[str] = set()
        self._seen: set[str] = set()
        self._lengths: set[int] = set()
        self.wild = 0  # lines that one of two alike processes has and the other has not
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
        """Whether it is known that the baseline repeats it: what no alike process had, it does repeatedly not have."""
        return fact.kind in self._seen or steps in self._lengths


def by_name(facts: Iterable[Fact]) -> dict[str, Fact]:
    return {fact.name: fact for fact in facts}


def _value(facts: Mapping[str, Fact], name: str) -> str | None:
    return facts[name].value if name in facts else None


class Reference:
    """How far alike processes are apart, nudged or not, by the name of a fingerprint and their length."""

    def __init__(self, unchanged: RepeatedRuns, prints: Prints) -> None:
        self._furthest: dict[tuple[int, str], float] = {}
        self._pairs: dict[int, int] = defaultdict(int)
        for sample, other in unchanged.pairs(nudged=True):
            if sample.nudge or not (other.nudge or _any_apart(prints(sample), prints(other))):
                continue
            steps = length(sample)
            self._pairs[steps] += 1
            left = {found.name: found for found in prints(sample)}
            for found in prints(other):
                if found.name in left:
                    far = apart(left[found.name], found)
                    self._furthest[steps, found.name] = max(far, self._furthest.get((steps, found.name), 0.0))

    def pairs(self, steps: int) -> int:
        return self._pairs[steps]

    def allowed(self, base: Fingerprint, steps: int) -> float:
        multiple = max(LEAST_MULTIPLE, student(max(1, self._pairs[steps]), 0.99))
        return max(multiple * self._furthest.get((steps, base.name), 0.0), FLOOR * base.norm)


def _any_apart(some: Iterable[Fingerprint], others: Iterable[Fingerprint]) -> bool:
    return [fingerprint.digest for fingerprint in some] != [fingerprint.digest for fingerprint in others]


def apart(one: Fingerprint, other: Fingerprint) -> float:
    """About the distance of what they are of."""
    if one.digest == other.digest:
        return 0.0
    if len(one.sketch) != len(other.sketch):
        return math.inf
    return math.sqrt(sum((left - right) ** 2 for left, right in zip(one.sketch, other.sketch, strict=True)))


def moved(one: Fingerprint) -> float:
    """How far it has come since the first step; its size where that is not known."""
    if not one.start:
        return one.norm
    return math.sqrt(sum((left - right) ** 2 for left, right in zip(one.sketch, one.start, strict=True)))
