"""The record of a tune as it grows: every change is saved at once, and nothing in it is measured again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from hotlap.catalog import entries
from hotlap.records.codec import SCHEMA
from hotlap.records.plan import Choice, Risk
from hotlap.records.trial import Sample, Trial, TrialStage
from hotlap.records.tune_record import Candidate, TuneRecord
from hotlap.records.verdict import Decision, Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """What the tune is doing now, for whoever watches."""

    trial: str
    stage: TrialStage
    arm: str
    pair: int
    step: int
    steps: int
    best: float  # ratio of what is kept to the baseline
    spent: float
    left: float  # seconds, estimated
    budget: float


class Watcher:
    """Is called with what happens; this base class does nothing."""

    def doing(self, doing: Activity) -> None: ...

    def judged(self, verdict: Verdict) -> None: ...

    def not_tried(self, entry: str, why: str) -> None: ...

    def caution(self, line: str) -> None: ...


class Book:
    def __init__(self, record: TuneRecord, save: Callable[[TuneRecord], None], watcher: Watcher) -> None:
        self.record, self._save, self.watcher = record, save, watcher
        self.spent = record.observing_seconds  # seconds, as far as the tune has been replayed

    def found(self, name: str) -> Trial | None:
        return next((trial for trial in self.record.trials if trial.name == name), None)

    def recorded(self, name: str) -> tuple[Sample, ...]:
        found = self.found(name)
        return found.samples if found is not None else ()

    def earlier(self, trial: Trial) -> tuple[Sample, ...]:
        """Return what ran as this trial's base in any other trial except the noise trial."""
        others = [other for other in self.record.trials if other.name != trial.name and other.stage != TrialStage.NOISE]
        program = {(choice.name, choice.value) for choice in trial.base}
        samples = (sample for other in others for sample in other.samples)
        return tuple(
            sample for sample in samples if {(choice.name, choice.value) for choice in sample.choices} == program
        )

    def put(self, trial: Trial) -> None:
        if len(self.recorded(trial.name)) >= len(trial.samples):
            return  # replayed
        trials = {known.name: known for known in self.record.trials} | {trial.name: trial}
        self.change(trials=tuple(trials.values()))

    def decide(self, verdict: Verdict) -> Verdict:
        known = self.known(verdict.trial)
        if known is not None:
            return known
        self.change(verdicts=(*self.record.verdicts, verdict))
        self.watcher.judged(verdict)
        return verdict

    def known(self, trial: str) -> Verdict | None:
        return next((verdict for verdict in self.record.verdicts if verdict.trial == trial), None)

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
    stage: TrialStage,
    candidate: Candidate | None,
    base: tuple[Choice, ...],
    new: tuple[Choice, ...],
) -> Trial:
    """Return a trial without samples, which are replayed from the record, or run."""
    order = list(entries())
    return Trial(
        schema=SCHEMA,
        name=name,
        stage=stage,
        entry=candidate.entry if candidate else None,
        value=candidate.value if candidate else None,
        base=tuple(sorted(base, key=lambda choice: order.index(choice.name))),
        new=tuple(sorted(new, key=lambda choice: order.index(choice.name))),
        risk=_riskiest(choice for choice in new if choice not in base),
        samples=(),
    )


def trial_name(stage: str, candidate: Candidate) -> str:
    return f"{stage}-{candidate.entry}" + ("" if candidate.value is None else f"={candidate.value}")


def together_name(stage: str, candidates: Sequence[Candidate]) -> str:
    """Return the name of a trial of several candidates: "stacked-2-tf32+compile=default"."""
    return f"{stage}-" + "+".join(trial_name("", candidate)[1:] for candidate in candidates)


def _riskiest(choices: Iterable[Choice]) -> Risk:
    risks = [entries()[choice.name].risk for choice in choices]
    return max(risks, key=lambda risk: risk.rank, default=Risk.EXACT)


def rejected(trial: Trial, why: str) -> Verdict:
    return Verdict(
        schema=SCHEMA,
        trial=trial.name,
        stage=trial.stage,
        entry=trial.entry,
        value=trial.value,
        decision=Decision.REJECT,
        why=why,
        speed=None,
        gate=None,
        pays_off=None,
    )
