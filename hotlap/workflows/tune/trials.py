"""The trials of a tune: pairs of processes, run until the verdict is clear, cannot become so, or time is up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from hotlap.errors import BaselineUnusable, BudgetTooSmall
from hotlap.judge.rounding import NUDGE
from hotlap.plan.choose import automatic
from hotlap.records.plan import Choice, Risk, Status
from hotlap.records.trial import EndReason, Sample, Trial, TrialStage
from hotlap.records.tune_record import Candidate, Screening, TuneRequest
from hotlap.records.verdict import Decision, Verdict
from hotlap.trial.runner import BASE, NEW, Runner, Spec
from hotlap.workflows.tune.book import Activity, Book, empty_trial, rejected
from hotlap.workflows.tune.budget import Budget
from hotlap.workflows.tune.length import FIRST_TRIALS, LASTING_SHARE, LEAST_STEPS, PATIENCE, Length
from hotlap.workflows.tune.refusals import refuse_baseline, steps_of

Judge = Callable[[Trial, Trial, TuneRequest, Sequence[Sample]], Verdict]
# Pairs of processes before judging for the first time:
PAIRS = {TrialStage.NOISE: 3, TrialStage.ALONE: 2, TrialStage.STACKED: 2, TrialStage.FINAL: 3, TrialStage.LASTING: 1}
MOST_PAIRS = 8
WORTH_LASTING = 1.5  # times the steps of the other stages: fewer show nothing new
RETRIES = 2  # of a baseline that worked before
METRIC_SHARE = 0.25  # of the budget, to wait for the metric for the first time
PROCESS_SHARE, SLOWER = 0.25, 3  # a process may take this share of the budget, or this many times the baseline's time
MANY = 1_000_000_000  # steps: screening ends when it has decided
STALE = 0.25  # seconds by which the step count of a printed line may be outdated


class Trials:
    def __init__(self, book: Book, length: Length, runner: Runner, judge: Judge) -> None:
        self._book, self._length, self._runner, self._judge = book, length, runner, judge
        self._steps = self._long_steps = length.steps
        self._played: set[tuple[str, int]] = set()  # samples, by trial and index
        self._noise: Trial | None = None
        self._doing: Activity | None = None
        self.budget = Budget(book, length.process_seconds)
        self.to_come = 0  # processes still planned
        self.best = 1.0  # ratio of what is kept to the baseline

    def against_itself(self) -> None:
        """Run the baseline against itself with nudged weights: how fast they diverge is a property of the program."""
        trial = empty_trial("noise", TrialStage.NOISE, None, (), ())
        for pair in range(PAIRS[TrialStage.NOISE]):
            if pair == PAIRS[TrialStage.NOISE] - 1 and not self.budget.affords(2 + 8):
                break
            trial = self.pair(trial, pair)
        self._noise = trial
        self._book.decide(self._judge(trial, trial, self._book.record.asked, ()))
        long = self._long_processes * self._long_cost(self._wanted)
        self.budget.last_stage = min(long, LASTING_SHARE * self.budget.seconds)

    def screened(self, names: Collection[str], seconds: float) -> Screening | None:
        trial = empty_trial("screening", TrialStage.ALONE, None, (), ())
        self._report(trial, NEW, 0, self._steps)
        risk = self._book.record.asked.risk
        spec = Spec(
            number=len(self._played),
            arm=NEW,
            choices=tuple(choice for choice in automatic(risk).choices if choice.name in names),
            seed_shift=0,
            steps=MANY,
            least=1,
            seconds=self._length.limit + seconds,
            screens=seconds,
        )
        return self._runner.screen(spec)

    def ask(
        self,
        name: str,
        stage: TrialStage,
        candidate: Candidate | None,
        base: tuple[Choice, ...],
        new: tuple[Choice, ...],
        reserve: int,
        most: int = MOST_PAIRS,
    ) -> Verdict:
        """Run pairs of processes until the trial is decided, cannot be decided within the limit, or time is up."""
        trial, known, pairs = empty_trial(name, stage, candidate, base, new), self._book.known(name), 0
        while known is None or len(trial.samples) < len(self._book.recorded(name)):
            trial = self.pair(trial, pairs)
            pairs += 1
            refused = self.refused(trial, candidate)
            if known is not None or (
                refused is None and pairs < min(most, PAIRS[stage]) and self.budget.affords_pair(stage, reserve)
            ):
                continue
            if refused is not None:
                return self._book.decide(rejected(trial, refused))
            verdict = self.judged(trial)
            if verdict.decision != Decision.INCONCLUSIVE or not self._may_yet(trial, verdict, pairs, reserve, most):
                return self._book.decide(verdict)
        return known

    def judged(self, trial: Trial) -> Verdict:
        assert self._noise is not None
        return self._judge(trial, self._noise, self._book.record.asked, self._book.earlier(trial))

    def _may_yet(self, trial: Trial, verdict: Verdict, pairs: int, reserve: int, most: int) -> bool:
        """Whether more processes could decide the trial, and there is time for them."""
        more = max(1, verdict.speed.more_as_measured if verdict.speed else 0, verdict.gate.more if verdict.gate else 0)
        if trial.stage == TrialStage.LASTING:
            more = 1  # its speed is proven; a second run shows whether the baseline repeats itself this far
        return pairs + more <= most and self.budget.affords_pair(trial.stage, reserve)

    def refused(self, trial: Trial, candidate: Candidate | None) -> str | None:
        """Return why the new arm needs no statistics: it failed, or the optimisation was not applied."""
        last = trial.samples[-1]
        if last.ended != EndReason.MEASURED:
            who = "" if last.arm == NEW else "the optimisations kept so far failed here, "
            return f"{who}{last.ended}: {last.why}" if last.why else f"{who}{last.ended}"
        new = trial.of(NEW)
        for outcome in new[-1].outcomes if new else ():
            if candidate is not None and outcome.name == candidate.entry and outcome.status != Status.APPLIED:
                return f"{outcome.status}: {outcome.why}"
        return None

    def pair(self, trial: Trial, pair: int) -> Trial:
        """Run A B, then B A, so that drift weighs on both arms alike. Both processes of a pair have the same seeds."""
        for arm, nudge in self._arms(trial, pair):
            index, known = len(trial.samples), self._book.recorded(trial.name)
            sample = known[index] if index < len(known) else self._sample(trial, arm, pair, nudge)
            trial = replace(trial, samples=(*trial.samples, sample))
            self._count(trial.name, index, sample)
            if trial.stage == TrialStage.NOISE:
                self._learn(trial)  # before saving: a refused baseline is measured again when the tune is resumed
            self._book.put(trial)
            if sample.ended != EndReason.MEASURED:
                break
        return trial

    def _arms(self, trial: Trial, pair: int) -> list[tuple[str, float]]:
        """Return the arms to run and their nudges; a long run that may differ needs a nudged baseline run as well."""
        first, second = (BASE, NEW) if pair % 2 == 0 else (NEW, BASE)
        if trial.stage == TrialStage.NOISE:
            return [(first, NUDGE if first == NEW else 0.0), (second, NUDGE if second == NEW else 0.0)]
        differs = trial.stage == TrialStage.LASTING and pair == 0 and trial.risk != Risk.EXACT
        return [(first, 0.0), (second, 0.0), *([(BASE, NUDGE)] if differs else [])]

    def _count(self, trial: str, index: int, sample: Sample) -> None:
        """Count a sample once, however often it is replayed."""
        if (trial, index) not in self._played:
            self._played.add((trial, index))
            self.to_come = max(0, self.to_come - 1)
            self._book.spent += sample.seconds

    def _sample(self, trial: Trial, arm: str, pair: int, nudge: float) -> Sample:
        own = arm == BASE or trial.stage == TrialStage.NOISE
        for _ in range(1 + RETRIES):
            sample = self._runner.run(self._spec(trial, arm, pair, nudge))
            if not own or trial.stage == TrialStage.NOISE or sample.ended == EndReason.MEASURED:
                return sample
        if trial.base:
            return sample  # the kept choices fail here, so nothing can be stacked on them
        raise BaselineUnusable(
            f"the unmodified command worked before and now fails: {sample.ended} ({sample.why}); "
            f"once it works again, continue: hotlap tune --resume {self._book.record.run}"
        )

    def _spec(self, trial: Trial, arm: str, pair: int, nudge: float) -> Spec:
        asked = self._book.record.asked
        first = not self._played and asked.metric is not None and asked.steps is None
        long = trial.stage == TrialStage.LASTING
        steps = self._long_steps if long else self._steps_on_top if trial.stage == TrialStage.STACKED else self._steps
        self._report(trial, arm, pair, steps)
        return Spec(
            number=len(self._played),
            arm=arm,
            choices=trial.base if arm == BASE else trial.new,
            seed_shift=0 if long else pair,  # a second pair shows whether the baseline repeats itself that far
            steps=steps,
            least=LEAST_STEPS,
            seconds=self._seconds(trial, first),
            nudge=nudge,
            readings=1 if first else 0,
        )

    @property
    def _steps_on_top(self) -> int:
        """Return the steps of a stacked trial: faster steps need more of them to be measured for as long."""
        return self._length.longer(self._steps, self.best) if self._book.record.asked.steps is None else self._steps

    def _seconds(self, trial: Trial, first: bool) -> float:
        """Return the time limit of one process; one that compiles for long must leave time for the others."""
        limit, budget = self._length.limit, self.budget.seconds
        if first:  # were the metric read later, no budget would be left to compare anything
            return max(SLOWER * self.budget.cost, METRIC_SHARE * budget)
        if trial.stage == TrialStage.NOISE:
            return limit
        cost = self.budget.cost
        if trial.stage == TrialStage.LASTING:
            cost = self._long_cost(self._long_steps)
            limit = max(limit, PATIENCE * cost)
        return min(limit, max(SLOWER * cost, min(PROCESS_SHARE * budget, self.budget.left)))

    def _learn(self, noise: Trial) -> None:
        """Learn from the baseline what a process costs, and how far it must train to reach the metric."""
        request, samples = self._book.record.asked, noise.samples
        refuse_baseline(samples, request, self._book.record.run)
        if len(samples) == 1 and request.metric is not None and request.steps is None:
            ahead = 2 + int(STALE / self._length.step_seconds)
            self._steps = max(self._steps, samples[0].readings[0].step + ahead)
        self.budget.learn(samples)
        needed = self._book.spent + (FIRST_TRIALS - len(samples)) * self.budget.cost
        if len(samples) == 1 and needed > request.budget_seconds:
            raise BudgetTooSmall(
                f"one process took {self.budget.cost:.0f} s for {steps_of(samples[0])} steps, which leaves no time to "
                f"compare within {request.budget_seconds:.0f} s; give it more time: --budget {needed * 3 / 60 + 1:.0f}m"
            )

    # The last stage

    @property
    def _wanted(self) -> int:
        return self._length.lasting(self._steps)

    @property
    def _long_processes(self) -> int:
        """Return the processes of the last stage, with a second baseline run unless only EXACT is allowed."""
        return 2 if self._book.record.asked.risk == Risk.EXACT else 3

    def _long_cost(self, steps: int) -> float:
        """Return the seconds of a baseline process with this many steps."""
        return self.budget.cost + max(0, steps - self._steps) * self._length.step_seconds

    def may_last(self) -> bool:
        """Whether there is time for a long run that is worth it; sets its steps to as many as there is time for."""
        more = (self.budget.left / self._long_processes - self.budget.cost) / self._length.step_seconds
        self._long_steps = min(self._wanted, self._steps + max(0, int(more)))
        return self._long_steps >= min(self._wanted, WORTH_LASTING * self._steps)

    # Reporting

    def keep(self, kept: tuple[Choice, ...], ratio: float, by: str | None = None) -> None:
        """Keep choices at this ratio to the baseline; `by` is the trial that proved them."""
        trial = self._book.found(by) if by is not None else None
        self.best = ratio
        if trial is not None:
            more = self._steps_on_top - self._steps if trial.stage != TrialStage.STACKED else 0
            self.budget.keep(trial.of(NEW), more * self._length.step_seconds / ratio)
        self._book.keep(kept)

    def _report(self, trial: Trial, arm: str, pair: int, steps: int) -> None:
        budget, cost = self.budget.seconds, self.budget.cost
        self._doing = Activity(
            trial=trial.name,
            stage=trial.stage,
            arm=arm,
            pair=pair + 1,
            step=0,
            steps=steps,
            best=self.best,
            spent=self._book.spent,
            left=max(cost, min(budget - self._book.spent, self.to_come * cost)),
            budget=budget,
        )
        self._book.watcher.doing(self._doing)

    def stepped(self, step: int) -> None:
        if self._doing is not None:
            self._book.watcher.doing(replace(self._doing, step=step))
