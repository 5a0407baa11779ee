"""The order of a tune: the baseline against itself, each optimisation alone, stacked, and finally everything kept.

Every decision here follows from the record alone, time spent included: a resumed tune is replayed from its first trial,
with samples from the record instead of from processes, until one is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import groupby

from hotlap.errors import BaselineUnusable, BudgetTooSmall
from hotlap.judge.rounding import NUDGE
from hotlap.plan.candidates import choice_of, is_switched
from hotlap.plan.choose import automatic
from hotlap.plan.search import says_thinned, search
from hotlap.records.plan import Choice, Risk, Status
from hotlap.records.trial import EndReason, Sample, Trial, TrialStage
from hotlap.records.tune_record import Candidate, Screening, TuneRecord, TuneRequest
from hotlap.records.verdict import Decision, Verdict
from hotlap.trial.runner import BASE, NEW, Runner, Spec
from hotlap.workflows.tune.book import Activity, Book, empty_trial, rejected, trial_name
from hotlap.workflows.tune.budget import Budget
from hotlap.workflows.tune.figures import is_harmless, ratio_of, speed_of
from hotlap.workflows.tune.layers import MOST_PAIRS, LayerSearch
from hotlap.workflows.tune.length import FIRST_TRIALS, LASTING_SHARE, LEAST_STEPS, PATIENCE, Length
from hotlap.workflows.tune.refusals import refuse_baseline, steps_of

Judge = Callable[[Trial, Trial, TuneRequest, Sequence[Sample]], Verdict]
# Pairs of processes before judging for the first time:
PAIRS = {TrialStage.NOISE: 3, TrialStage.ALONE: 2, TrialStage.STACKED: 2, TrialStage.FINAL: 3, TrialStage.LASTING: 1}
WORTH_LASTING = 1.5  # times the steps of the other stages: fewer show nothing new
RETRIES = 2  # of a baseline that worked before
METRIC_SHARE = 0.25  # of the budget, to wait for the metric for the first time
PROCESS_SHARE, SLOWER = 0.25, 3  # a process may take this share of the budget, or this many times the baseline's time
TOGETHER = 8  # processes, to try several at once and to prove in the end what is kept
SHIFTED = 1.25  # times as fast: from here on something else may be the bottleneck
MORE = "give a larger --budget"
SCREEN_SHARE, SCREEN_LEAST, SCREEN_MOST = 0.2, 4.0, 60.0  # of the budget, and seconds, for the screening process
PROVING = 4  # processes, to prove what screening decided
MANY = 1_000_000_000  # steps: screening ends when it has decided
STALE = 0.25  # seconds by which the step count of a printed line may be outdated


class Tuner:
    def __init__(
        self,
        book: Book,
        length: Length,
        runner: Runner,
        judge: Judge,
    ) -> None:
        self.book, self._length, self._runner, self._judge = book, length, runner, judge
        self._steps = length.steps
        self._played: set[tuple[str, int]] = set()  # samples, by trial and index
        self._budget = Budget(book, length.process_seconds)
        self._noise: Trial | None = None
        self._to_come = 0  # processes still planned
        self._best = 1.0
        self._refused_alone: list[Candidate] = []
        self._not_alone: list[Candidate] = []  # tried only on top of what is kept, for lack of budget
        self._untried: list[tuple[Candidate, str]] = []  # not tried by themselves, but perhaps together with others
        self._long_steps = length.steps
        self.doing: Activity | None = None

    def run(self) -> TuneRecord:
        groups = [
            list(group) for _, group in groupby(self.book.record.candidates, key=lambda candidate: candidate.entry)
        ]
        self._to_come = 6 + 4 * len(groups) + (6 if groups else 0)
        self._noise = self._against_itself()
        stack = LayerSearch(self.book, self._budget, self._ask, self._keep, self._may_last)
        groups = self._screen(groups, stack)
        winners: list[tuple[Candidate, Verdict]] = []
        doubtful: list[Candidate] = []
        while groups and not winners and not stack.kept:
            promising, groups = self._promising(groups)
            self._prove_alone(promising, winners, doubtful)
        self._not_alone += [group[0] for group in groups]
        stack.winners(winners)
        self._report_untried(stack.chances(self._chances(doubtful, bool(stack.kept))), bool(stack.kept))
        self._finish(stack)
        self.book.change(finished=True)
        return self.book.record

    # All in one process first

    def _screen(self, groups: list[list[Candidate]], stack: LayerSearch) -> list[list[Candidate]]:
        """Try what can be switched during training in one process, and prove the winners together in fresh processes.

        Returns the groups that are left to be tried one by one.
        """
        screened = self._screened(groups)
        if screened is None or screened.decisions is None:
            return groups
        decided, by_name = screened.decisions, {group[0].entry: group for group in groups}
        on = [by_name[name][0] for name in decided.on if name in by_name]
        # The proof may use the time of the last stage: without a proof there is nothing to run for longer.
        if on and self._budget.affords_pair(TrialStage.LASTING, 0) and stack.screened(on):
            left = [group for group in groups if group[0] not in on]
        else:
            left = groups
        return [group for group in left if self._is_worth_more(group, screened, group[0] in on)]

    def _is_worth_more(self, group: Sequence[Candidate], screened: Screening, was_on: bool) -> bool:
        """Whether to try a group again: not if screening showed no gain, or reported why it does nothing."""
        name, decided = group[0].entry, screened.decisions
        if was_on or decided is None or not is_switched(name):
            return True
        tried = [attempt for attempt in decided.tried if name in attempt.names and attempt.ratio is not None]
        outcome = next((outcome for outcome in screened.outcomes if outcome.name == name), None)
        if tried:
            self.book.not_tried(name, f"screened while one process trained: {tried[-1].why}")
        elif outcome is not None and outcome.status != Status.APPLIED and decided.is_over:
            self.book.not_tried(name, f"{outcome.status}: {outcome.why}")
        else:
            return True
        return False

    def _screened(self, groups: Sequence[Sequence[Candidate]]) -> Screening | None:
        known = self.book.record.screened
        if known is None:
            names = {group[0].entry for group in groups if is_switched(group[0].entry)}
            seconds = min(
                SCREEN_MOST, SCREEN_SHARE * self._budget.seconds, self._budget.left - PROVING * self._budget.cost
            )
            if not names or seconds < SCREEN_LEAST:
                return None
            known = self._runner.screen(self._screening(names, seconds))
            if known is None:
                return None
            self.book.spent += known.seconds
            self.book.change(screened=known)
        else:
            self.book.spent += known.seconds
        return known

    def _screening(self, names: Collection[str], seconds: float) -> Spec:
        trial = empty_trial("screening", TrialStage.ALONE, None, (), ())
        self._report(trial, NEW, 0, 0, self._steps)
        risk = self.book.record.asked.risk
        return Spec(
            number=len(self._played),
            arm=NEW,
            choices=tuple(choice for choice in automatic(risk).choices if choice.name in names),
            seed_shift=0,
            steps=MANY,
            least=1,
            seconds=self._length.limit + seconds,
            screens=seconds,
        )

    # The stages

    def _prove_alone(
        self, promising: Sequence[Candidate], winners: list[tuple[Candidate, Verdict]], doubtful: list[Candidate]
    ) -> None:
        for number, candidate in enumerate(promising):
            name, choice = trial_name("alone", candidate), choice_of(candidate)
            only = len(promising) == 1 and candidate.value is None  # not picked as the fastest: needs no second proof
            reserve = 8 if winners else 0 if only else 4
            if len(self._untried) > 1:
                reserve = max(reserve, TOGETHER)
            most = self._most_alone(len(promising) - number)
            verdict = self._ask(name, TrialStage.ALONE, candidate, (), (choice,), reserve, most)
            if verdict.decision == Decision.KEEP:
                winners.append((candidate, verdict))
                winners.sort(key=lambda pair: -ratio_of(pair[1]))
                self._keep((choice_of(winners[0][0]),), ratio_of(winners[0][1]), trial_name("alone", winners[0][0]))
            elif is_harmless(verdict):
                doubtful.append(candidate)

    def _against_itself(self) -> Trial:
        """Run the baseline against itself with nudged weights: how fast they diverge is a property of the program."""
        trial = empty_trial("noise", TrialStage.NOISE, None, (), ())
        for pair in range(PAIRS[TrialStage.NOISE]):
            if pair == PAIRS[TrialStage.NOISE] - 1 and not self._budget.affords(2 + 8):
                break
            trial = self._pair(trial, pair)
        self.book.decide(self._judge(trial, trial, self.book.record.asked, ()))
        long = self._long_processes * self._long_cost(self._wanted)
        self._budget.last_stage = min(long, LASTING_SHARE * self._budget.seconds)
        return trial

    def _promising(self, groups: list[list[Candidate]]) -> tuple[list[Candidate], list[list[Candidate]]]:
        """Try each group once, in the order of its likely gain; return the promising candidates, the fastest first.

        Also returns the groups not tried because one candidate makes the step so much shorter that it should be proven
        first. Time is reserved to prove the best; the first group is tried if there is time for only two pairs.
        """
        speeds: list[tuple[float, Candidate]] = []
        rest: list[list[Candidate]] = []
        for number, group in enumerate(groups):
            if self._is_short_of(len(groups) - number, speeds):
                rest = groups[number:]
                break
            needed = self._needed(len(groups) - number, bool(speeds))
            if not self._budget.affords(needed):
                why = self._no_budget(needed)
                self._untried += [(left[0], why) for left in groups[number:]]
                break
            tried = self._try_values(group)
            if tried:
                speed, best = max(tried, key=lambda pair: pair[0])
                speeds.append((speed, best))
                for _, candidate in tried:
                    if candidate is not best:
                        self._reject_slower(candidate, best)
        return [candidate for _, candidate in sorted(speeds, key=lambda pair: -pair[0])], rest

    def _needed(self, groups: int, tried: bool) -> int:
        """Return the processes needed to try the first of these groups and to prove the best.

        If several are left, this is what trying them together takes, provided there is time for that at all.
        """
        if groups > 1 and self._budget.affords(TOGETHER):
            return 2 + TOGETHER
        return 8 if tried else 4

    def _most_alone(self, left: int) -> int:
        """Return the pairs to spend on one alone: few once the step is much shorter, as stacking then decides."""
        if self._best < SHIFTED:
            return MOST_PAIRS
        return PAIRS[TrialStage.ALONE] if self._budget.affords(6 * left + 6) else 1

    def _is_short_of(self, groups: int, speeds: Sequence[tuple[float, Candidate]]) -> bool:
        """Whether one shortens the step a lot and there is no time to try the others both alone and on top of it."""
        much = max((speed for speed, _ in speeds), default=1.0) >= SHIFTED
        return much and not self._budget.affords(2 + 6 * groups + 4)

    def _no_budget(self, processes: int) -> str:
        return f"no budget left: this needs about {processes * self._budget.cost:.0f} s more; {MORE}"

    def _try_values(self, group: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
        """Run one pair of processes for each value worth trying; return the candidates with their speeds."""
        by_value = {candidate.value: candidate for candidate in group}
        if (note := says_thinned(list(by_value))) is not None:
            self.book.not_tried(group[0].entry, note)
        finding, found = search(list(by_value)), list[tuple[float, Candidate]]()
        for value in finding.values():
            if found and not self._budget.affords(8):
                break
            speed = self._try_once(by_value[value])
            finding.tell(value, speed)
            if speed > 0:
                found.append((speed, by_value[value]))
        for value in finding.left_out:
            self.book.not_tried(f"{group[0].entry}={value}", "two other values were slower when each was tried once")
        return found

    def _try_once(self, candidate: Candidate) -> float:
        """Return the speed of a candidate after one pair; 0 if it failed or did nothing."""
        trial = self._pair(
            empty_trial(trial_name("alone", candidate), TrialStage.ALONE, candidate, (), (choice_of(candidate),)), 0
        )
        refused = self._refused(trial, candidate)
        if refused is None and self._does_harm(trial):
            return 0.0
        if refused is None:
            return speed_of(trial)
        self.book.decide(rejected(trial, refused))
        if refused.startswith(Status.REFUSED):
            self._refused_alone.append(candidate)
        return 0.0

    def _does_harm(self, trial: Trial) -> bool:
        """Whether one pair already shows harm, so that no more are spent on it."""
        verdict = self._judged(trial)
        if verdict.gate is None or verdict.gate.passed is not False:
            return False
        self.book.decide(verdict)
        return True

    def _reject_slower(self, candidate: Candidate, best: Candidate) -> None:
        trial = self.book.found(trial_name("alone", candidate))
        if trial is None or self._noise is None or self.book.known(trial.name) is not None:
            return
        judged = self._judged(trial)
        why = f"{candidate.entry}={best.value} was faster when each value was tried once"
        self.book.decide(replace(judged, decision=Decision.REJECT, why=why))

    def _chances(self, doubtful: Sequence[Candidate], kept: bool) -> list[Candidate]:
        """Return the candidates to try on top of what is kept, in the order of their likely gain.

        If the step is hardly shorter than before, what showed nothing alone would show nothing on top either, except
        several together.
        """
        again = doubtful if self._best >= SHIFTED or not kept else ()
        chances = [*self._refused_alone, *self._not_alone, *again, *(candidate for candidate, _ in self._untried)]
        return [candidate for candidate in self.book.record.candidates if candidate in chances]

    def _report_untried(self, untried: Sequence[Candidate], kept: bool) -> None:
        known = dict(self._untried)
        for candidate in untried:
            if candidate in known or kept:
                self.book.not_tried(
                    candidate.entry, known.get(candidate, f"no budget left to try it on top of what is kept; {MORE}")
                )

    def _finish(self, stack: LayerSearch) -> None:
        speedup, lasting = stack.finish()
        self.book.change(speedup=speedup, lasting=lasting)
        self._budget.last_stage = 0.0
        for candidate in self._not_alone:
            if choice_of(candidate) in stack.kept and self._budget.affords(2):  # what it does alone, for the report
                self._ask(
                    trial_name("alone", candidate),
                    TrialStage.ALONE,
                    candidate,
                    (),
                    (choice_of(candidate),),
                    reserve=0,
                    most=1,
                )

    # The last stage

    @property
    def _wanted(self) -> int:
        return self._length.lasting(self._steps)

    @property
    def _long_processes(self) -> int:
        """Return the processes of the last stage, with a second baseline run unless only EXACT is allowed."""
        return 2 if self.book.record.asked.risk == Risk.EXACT else 3

    def _long_cost(self, steps: int) -> float:
        """Return the seconds of a baseline process with this many steps."""
        return self._budget.cost + max(0, steps - self._steps) * self._length.step_seconds

    def _may_last(self) -> bool:
        """Whether there is time for a long run that is worth it; sets its steps to as many as there is time for."""
        more = (self._budget.left / self._long_processes - self._budget.cost) / self._length.step_seconds
        self._long_steps = min(self._wanted, self._steps + max(0, int(more)))
        return self._long_steps >= min(self._wanted, WORTH_LASTING * self._steps)

    # One question

    def _ask(
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
        trial, known, pairs = empty_trial(name, stage, candidate, base, new), self.book.known(name), 0
        while known is None or len(trial.samples) < len(self.book.recorded(name)):
            trial = self._pair(trial, pairs)
            pairs += 1
            refused = self._refused(trial, candidate)
            if known is not None or (
                refused is None and pairs < min(most, PAIRS[stage]) and self._budget.affords_pair(stage, reserve)
            ):
                continue
            if refused is not None:
                return self.book.decide(rejected(trial, refused))
            verdict = self._judged(trial)
            if verdict.decision != Decision.INCONCLUSIVE or not self._may_yet(trial, verdict, pairs, reserve, most):
                return self.book.decide(verdict)
        return known

    def _judged(self, trial: Trial) -> Verdict:
        assert self._noise is not None
        return self._judge(trial, self._noise, self.book.record.asked, self.book.earlier(trial))

    def _may_yet(self, trial: Trial, verdict: Verdict, pairs: int, reserve: int, most: int) -> bool:
        """Whether more processes could decide the trial, and there is time for them."""
        more = max(1, verdict.speed.more_as_measured if verdict.speed else 0, verdict.gate.more if verdict.gate else 0)
        if trial.stage == TrialStage.LASTING:
            more = 1  # its speed is proven; a second run shows whether the baseline repeats itself this far
        return pairs + more <= most and self._budget.affords_pair(trial.stage, reserve)

    def _refused(self, trial: Trial, candidate: Candidate | None) -> str | None:
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

    # Samples

    def _pair(self, trial: Trial, pair: int) -> Trial:
        """Run A B, then B A, so that drift weighs on both arms alike. Both processes of a pair have the same seeds."""
        for arm, nudge in self._arms(trial, pair):
            index, known = len(trial.samples), self.book.recorded(trial.name)
            sample = known[index] if index < len(known) else self._sample(trial, arm, pair, nudge)
            trial = replace(trial, samples=(*trial.samples, sample))
            self._count(trial.name, index, sample)
            if trial.stage == TrialStage.NOISE:
                self._learn(trial)  # before saving: a refused baseline is measured again when the tune is resumed
            self.book.put(trial)
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
            self._to_come = max(0, self._to_come - 1)
            self.book.spent += sample.seconds

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
            f"once it works again, continue: hotlap tune --resume {self.book.record.run}"
        )

    def _spec(self, trial: Trial, arm: str, pair: int, nudge: float) -> Spec:
        first = not self._played and self.book.record.asked.metric is not None and self.book.record.asked.steps is None
        long = trial.stage == TrialStage.LASTING
        steps = self._long_steps if long else self._steps_on_top if trial.stage == TrialStage.STACKED else self._steps
        self._report(trial, arm, pair, 0, steps)
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
        return self._length.longer(self._steps, self._best) if self.book.record.asked.steps is None else self._steps

    def _seconds(self, trial: Trial, first: bool) -> float:
        """Return the time limit of one process; one that compiles for long must leave time for the others."""
        limit, budget = self._length.limit, self._budget.seconds
        if first:
            return max(limit, METRIC_SHARE * budget)
        if trial.stage == TrialStage.NOISE:
            return limit
        cost = self._budget.cost
        if trial.stage == TrialStage.LASTING:
            cost = self._long_cost(self._long_steps)
            limit = max(limit, PATIENCE * cost)
        return min(limit, max(SLOWER * cost, min(PROCESS_SHARE * budget, self._budget.left)))

    def _learn(self, noise: Trial) -> None:
        """Learn from the baseline what a process costs, and how far it must train to reach the metric."""
        request, samples = self.book.record.asked, noise.samples
        refuse_baseline(samples, request, self.book.record.run)
        if len(samples) == 1 and request.metric is not None and request.steps is None:
            ahead = 2 + int(STALE / self._length.step_seconds)
            self._steps = max(self._steps, samples[0].readings[0].step + ahead)
        self._budget.learn(samples)
        needed = self.book.spent + (FIRST_TRIALS - len(samples)) * self._budget.cost
        if len(samples) == 1 and needed > request.budget_seconds:
            raise BudgetTooSmall(
                f"one process took {self._budget.cost:.0f} s for {steps_of(samples[0])} steps, which leaves no time to "
                f"compare within {request.budget_seconds:.0f} s; give it more time: --budget {needed * 3 / 60 + 1:.0f}m"
            )

    # Reporting

    def _keep(self, kept: tuple[Choice, ...], ratio: float, by: str | None = None) -> None:
        """Keep choices at this ratio to the baseline; `by` is the trial that proved them."""
        trial = self.book.found(by) if by is not None else None
        self._best = ratio
        if trial is not None:
            more = self._steps_on_top - self._steps if trial.stage != TrialStage.STACKED else 0
            self._budget.keep(trial.of(NEW), more * self._length.step_seconds / ratio)
        self.book.keep(kept)

    def _report(self, trial: Trial, arm: str, pair: int, step: int, steps: int) -> None:
        budget, cost = self._budget.seconds, self._budget.cost
        self.doing = Activity(
            trial=trial.name,
            stage=trial.stage,
            arm=arm,
            pair=pair + 1,
            step=step,
            steps=steps,
            best=self._best,
            spent=self.book.spent,
            left=max(cost, min(budget - self.book.spent, self._to_come * cost)),
            budget=budget,
        )
        self.book.watcher.doing(self.doing)

    def stepped(self, step: int) -> None:
        if self.doing is not None:
            self.book.watcher.doing(replace(self.doing, step=step))
