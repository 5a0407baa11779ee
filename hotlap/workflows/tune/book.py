"""The record of a tune as it grows: every change is saved at once, and what is there already is not made again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from hotlap.catalog import entries
from hotlap.records.codec import SCHEMA
from hotlap.records.plan import Choice, Risk
from hotlap.records.trial import Sample, Stage, Trial
from hotlap.records.tune_record import Candidate, TuneRecord
from hotlap.records.verdict import Decision, Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """What is under way, for whoever watches."""

    trial: str
    stage: str
    arm: str
    pair: int
    step: int
    steps: int
    best: float  # of what is kept, against the baseline
    spent: float
    left: float  # seconds, about
    budget: float


class Watcher:
    """Told what happens; does nothing by itself."""

    def doing(self, doing: Activity) -> None: ...

    def judged(self, verdict: Verdict) -> None: ...

    def not_tried(self, entry: str, why: str) -> None: ...

    def caution(self, line: str) -> None: ...


class Book:
    def __init__(self, record: TuneRecord, save: Callable[[TuneRecord], None], watcher: Watcher) -> None:
        self.record, self._save, self.watcher = record, save, watcher
        self.spent = record.observing_seconds  # seconds, as far as the tune has been played

    def found(self, name: str) -> Trial | None:
        return next((one for one in self.record.trials if one.name == name), None)

    def recorded(self, name: str) -> tuple[Sample, ...]:
        found = self.found(name)
        return found.samples if found is not None else ()

    def earlier(self, trial: Trial) -> tuple[Sample, ...]:
        """What ran as this trial's base in any other but the noise trial."""
        others = [one for one in self.record.trials if one.name != trial.name and one.stage != Stage.NOISE.value]
        program = {(one.name, one.value) for one in trial.base}
        samples = (sample for one in others for sample in one.samples)
        return tuple(one for one in samples if {(each.name, each.value) for each in one.choices} == program)

    def put(self, trial: Trial) -> None:
        if len(self.recorded(trial.name)) >= len(trial.samples):
            return  # played again
        trials = {one.name: one for one in self.record.trials} | {trial.name: trial}
        self.change(trials=tuple(trials.values()))

    def decide(self, verdict: Verdict) -> Verdict:
        known = self.known(verdict.trial)
        if known is not None:
            return known
        self.change(verdicts=(*self.record.verdicts, verdict))
        self.watcher.judged(verdict)
        return verdict

    def known(self, trial: str) -> Verdict | None:
        return next((one for one in self.record.verdicts if one.trial == trial), None)

    def keep(self, kept: tuple[Choice, ...]) -> None:
        if kept != self.record.kept:
            self.change(kept=kept)

    def not_tried(self, entry: str, why: str) -> None:
        if (entry, why) not in self.record.not_tried:
            self.change(not_tried=(*self.record.not_tried, (entry, why)))
            self.watcher.not_tried(entry, why)

    def change(self, **fields: object) -> None:
        spent = max(self.record.seconds, self.spent)
        self.record = replace(self.record, seconds=spent, **fields)  # type: ignore[arg-type]
        self._save(self.record)


def empty_trial(
    name: str,
    stage: Stage,
    candidate: Candidate | None,
    base: tuple[Choice, ...],
    new: tuple[Choice, ...],
) -> Trial:
    """Without samples: these are played again from the record, or run."""
    order = list(entries())
    return Trial(
        schema=SCHEMA,
        name=name,
        stage=stage.value,
        entry=candidate.entry if candidate else None,
        value=candidate.value if candidate else None,
        base=tuple(sorted(base, key=lambda one: order.index(one.name))),
        new=tuple(sorted(new, key=lambda one: order.index(one.name))),
        risk=_riskiest(one for one in new if one not in base),
        samples=(),
    )


def trial_name(stage: str, candidate: Candidate) -> str:
    return f"{stage}-{candidate.entry}" + ("" if candidate.value is None else f"={candidate.value}")


def together_name(stage: str, candidates: Sequence[Candidate]) -> str:
    """Of several at once: "stacked-2-tf32+compile=default"."""
    return f"{stage}-" + "+".join(trial_name("", one)[1:] for one in candidates)


def _riskiest(choices: Iterable[Choice]) -> str:
    risks = [entries()[one.name].risk for one in choices]
    return max(risks, key=lambda one: one.rank, default=Risk.EXACT).value


def rejected(trial: Trial, why: str) -> Verdict:
    return Verdict(
        schema=SCHEMA,
        trial=trial.name,
        stage=trial.stage,
        entry=trial.entry,
        value=trial.value,
        decision=Decision.REJECT.value,
        why=why,
        speed=None,
        gate=None,
        pays_off=None,
    )
