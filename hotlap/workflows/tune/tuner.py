"""The order of a tune: the baseline against itself, each optimisation alone, stacked, and all that is kept at last.

Everything decided here follows from the record alone, time spent included: a tune that goes on is played again from
its first trial, with samples from the record instead of from processes, until one is missing.
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
from hotlap.records.trial import EndReason, Sample, Stage, Trial
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
# Before judging for the first time:
PAIRS = {Stage.NOISE: 3, Stage.ALONE: 2, Stage.STACKED: 2, Stage.FINAL: 3, Stage.LASTING: 1}
WORTH_LASTING = 1.5  # times the steps of the other stages: less shows nothing new
RETRIES = 2  # of a baseline that worked before
METRIC_SHARE = 0.25  # of the budget, to wait for the metric for the first time
PROCESS_SHARE, SLOWER = 0.25, 3  # a process may take so much of the budget, or so many times what the baseline takes
TOGETHER = 8  # processes, to try several at once and to prove at last what is kept
SHIFTED = 1.25  # times as fast, from which on something else may be what the step waits for
MORE = "give a larger --budget"
SCREEN_SHARE, SCREEN_LEAST, SCREEN_MOST = 0.2, 4.0, 60.0  # of the budget, and seconds, for a process that decides
PROVING = 4  # processes, to prove what it has decided
MANY = 1_000_000_000  # steps: it ends when it has decided
STALE = 0.25  # seconds that a step count beside a printed line may be old


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
        self._played: set[tuple[str, int]] = set()  # samples, by trial and place in it
        self._budget = Budget(book, length.process_seconds)
        self._noise: Trial | None = None
        self._to_come = 0  # processes still planned
        self._best = 1.0
        self._refused_alone: list[Candidate] = []
        self._not_alone: list[Candidate] = []  # for want of budget tried on top of what is kept only
        self._not_looked_at: list[tuple[Candidate, str]] = []  # nor that, but perhaps together with others
        self._long_steps = length.steps
        self.doing: Activity | None = None

    def run(self) -> TuneRecord:
        groups = [list(group) for _, group in groupby(self.book.record.candidates, key=lambda one: one.entry)]
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
        self._tell_untried(stack.chances(self._chances(doubtful, bool(stack.kept))), bool(stack.kept))
        self._finish(stack)
        self.book.change(finished=True)
        return self.book.record

    # All in one process first

    def _screen(self, groups: list[list[Candidate]], stack: LayerSearch) -> list[list[Candidate]]:
        """What can be switched while it trains is, in one process; what won there is then proven as one, in fresh ones.
        The groups that are left to be tried one by one are returned.
        """
        screened = self._screened(groups)
        if screened is None or screened.decisions is None:
            return groups
        decided, by_name = screened.decisions, {group[0].entry: group for group in groups}
        on = [by_name[name][0] for name in decided.on if name in by_name]
        # The last stage may have to be left out for it: without a proof there is nothing to look at for longer
        if on and self._budget.affords_pair(Stage.LASTING.value, 0) and stack.screened(on):
            left = [group for group in groups if group[0] not in on]
        else:
            left = groups
        return [group for group in left if self._is_worth_more(group, screened, group[0] in on)]

    def _is_worth_more(self, group: Sequence[Candidate], screened: Screening, was_on: bool) -> bool:
        """What was tried in the one process and did not gain there, or said why it does nothing, is not tried again."""
        name, decided = group[0].entry, screened.decisions
        if was_on or decided is None or not is_switched(name):
            return True
        tried = [one for one in decided.tried if name in one.names and one.ratio is not None]
        outcome = next((one for one in screened.outcomes if one.name == name), None)
        if tried:
            self.book.not_tried(name, f"while it trained, in one process: {tried[-1].why}")
        elif outcome is not None and outcome.status != Status.APPLIED.value and decided.is_over:
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
        trial = empty_trial("screening", Stage.ALONE, None, (), ())
        self._tell(trial, NEW, 0, 0, self._steps)
        risk = Risk(self.book.record.asked.risk)
        return Spec(
            number=len(self._played),
            arm=NEW,
            choices=tuple(one for one in automatic(risk).choices if one.name in names),
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
        for number, one in enumerate(promising):
            name, choice = trial_name("alone", one), choice_of(one)
            only = len(promising) == 1 and one.value is None  # not picked as the fastest, so it needs no second proof
            reserve = 8 if winners else 0 if only else 4
            if len(self._not_looked_at) > 1:
                reserve = max(reserve, TOGETHER)
            most = self._most_alone(len(promising) - number)
            verdict = self._ask(name, Stage.ALONE, one, (), (choice,), reserve, most)
            if verdict.decision == Decision.KEEP.value:
                winners.append((one, verdict))
                winners.sort(key=lambda pair: -ratio_of(pair[1]))
                self._keep((choice_of(winners[0][0]),), ratio_of(winners[0][1]), trial_name("alone", winners[0][0]))
            elif is_harmless(verdict):
                doubtful.append(one)

    def _against_itself(self) -> Trial:
        """One arm as it is, one with its weights off by a little: how fast the two part is the program's own."""
        trial = empty_trial("noise", Stage.NOISE, None, (), ())
        for pair in range(PAIRS[Stage.NOISE]):
            if pair == PAIRS[Stage.NOISE] - 1 and not self._budget.affords(2 + 8):
                break
            trial = self._pair(trial, pair)
        self.book.decide(self._judge(trial, trial, self.book.record.asked, ()))
        long = self._long_processes * self._long_cost(self._wanted)
        self._budget.last_stage = min(long, LASTING_SHARE * self._budget.seconds)
        return trial

    def _promising(self, groups: list[list[Candidate]]) -> tuple[list[Candidate], list[list[Candidate]]]:
        """After one look at each, in the order of what they are likely to gain: what is worth more, the fastest first;
        and those that nobody looked at, because one makes the step so much shorter that it is to be proven first.

        Time is left to prove the best of them; the first is looked at if there is time for as little as two pairs.
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
                self._not_looked_at += [(left[0], why) for left in groups[number:]]
                break
            looked = self._look_at_values(group)
            if looked:
                speed, best = max(looked, key=lambda pair: pair[0])
                speeds.append((speed, best))
                for _, one in looked:
                    if one is not best:
                        self._slower(one, best)
        return [one for _, one in sorted(speeds, key=lambda pair: -pair[0])], rest

    def _needed(self, groups: int, looked: bool) -> int:
        """Processes to look at the first of so many and to prove the best; where several are left, to try them together
        instead, if there is time for that at all.
        """
        if groups > 1 and self._budget.affords(TOGETHER):
            return 2 + TOGETHER
        return 8 if looked else 4

    def _most_alone(self, left: int) -> int:
        """Pairs. Once the step is much shorter, what one does on top of that decides, and is what time is kept for."""
        if self._best < SHIFTED:
            return MOST_PAIRS
        return PAIRS[Stage.ALONE] if self._budget.affords(6 * left + 6) else 1

    def _is_short_of(self, groups: int, speeds: Sequence[tuple[float, Candidate]]) -> bool:
        """One makes the step much shorter, and there is no time to look at the others alone and then on top of it."""
        much = max((speed for speed, _ in speeds), default=1.0) >= SHIFTED
        return much and not self._budget.affords(2 + 6 * groups + 4)

    def _no_budget(self, processes: int) -> str:
        return f"no budget left: it needs about {processes * self._budget.cost:.0f} s more; {MORE}"

    def _look_at_values(self, group: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
        """One pair of processes for each value that is worth it, with the speed they show."""
        by_value = {one.value: one for one in group}
        if (said := says_thinned(list(by_value))) is not None:
            self.book.not_tried(group[0].entry, said)
        finding, found = search(list(by_value)), list[tuple[float, Candidate]]()
        for value in finding.values():
            if found and not self._budget.affords(8):
                break
            speed = self._look(by_value[value])
            finding.tell(value, speed)
            if speed > 0:
                found.append((speed, by_value[value]))
        for value in finding.left_out:
            self.book.not_tried(f"{group[0].entry}={value}", "two other values were slower in a look at each")
        return found

    def _look(self, one: Candidate) -> float:
        """0 where it failed or did nothing."""
        trial = self._pair(empty_trial(trial_name("alone", one), Stage.ALONE, one, (), (choice_of(one),)), 0)
        refused = self._refused(trial, one)
        if refused is None and self._does_harm(trial):
            return 0.0
        if refused is None:
            return speed_of(trial)
        self.book.decide(rejected(trial, refused))
        if refused.startswith(Status.REFUSED.value):
            self._refused_alone.append(one)
        return 0.0

    def _does_harm(self, trial: Trial) -> bool:
        """One pair is enough to see it; then no more are spent on it."""
        verdict = self._judged(trial)
        if verdict.gate is None or verdict.gate.passed is not False:
            return False
        self.book.decide(verdict)
        return True

    def _slower(self, one: Candidate, best: Candidate) -> None:
        trial = self.book.found(trial_name("alone", one))
        if trial is None or self._noise is None or self.book.known(trial.name) is not None:
            return
        judged = self._judged(trial)
        why = f"{one.entry}={best.value} was faster in one look at each value"
        self.book.decide(replace(judged, decision=Decision.REJECT.value, why=why))

    def _chances(self, doubtful: Sequence[Candidate], kept: bool) -> list[Candidate]:
        """In the order of what they can gain at most. Where the step is hardly shorter than before, what showed nothing
        alone would show nothing on top of that, but several may together.
        """
        again = doubtful if self._best >= SHIFTED or not kept else ()
        chances = [*self._refused_alone, *self._not_alone, *again, *(one for one, _ in self._not_looked_at)]
        return [one for one in self.book.record.candidates if one in chances]

    def _tell_untried(self, untried: Sequence[Candidate], kept: bool) -> None:
        known = dict(self._not_looked_at)
        for one in untried:
            if one in known or kept:
                self.book.not_tried(
                    one.entry, known.get(one, f"no budget left to try it on top of what is kept; {MORE}")
                )

    def _finish(self, stack: LayerSearch) -> None:
        speedup, lasting = stack.finish()
        self.book.change(speedup=speedup, lasting=lasting)
        self._budget.last_stage = 0.0
        for one in self._not_alone:
            if choice_of(one) in stack.kept and self._budget.affords(2):  # what it does by itself, for the report
                self._ask(trial_name("alone", one), Stage.ALONE, one, (), (choice_of(one),), reserve=0, most=1)

    # The last stage

    @property
    def _wanted(self) -> int:
        return self._length.lasting(self._steps)

    @property
    def _long_processes(self) -> int:
        """What need not be exact has the baseline once more to be held against."""
        return 2 if self.book.record.asked.risk == Risk.EXACT.value else 3

    def _long_cost(self, steps: int) -> float:
        """Seconds of a process of the baseline."""
        return self._budget.cost + max(0, steps - self._steps) * self._length.step_seconds

    def _may_last(self) -> bool:
        """Whether there is time for a run that is worth it; it is as long as there is time for."""
        more = (self._budget.left / self._long_processes - self._budget.cost) / self._length.step_seconds
        self._long_steps = min(self._wanted, self._steps + max(0, int(more)))
        return self._long_steps >= min(self._wanted, WORTH_LASTING * self._steps)

    # One question

    def _ask(
        self,
        name: str,
        stage: Stage,
        candidate: Candidate | None,
        base: tuple[Choice, ...],
        new: tuple[Choice, ...],
        reserve: int,
        most: int = MOST_PAIRS,
    ) -> Verdict:
        """More and more pairs of processes until it is decided, or they would not be enough, or time is up."""
        trial, known, pairs = empty_trial(name, stage, candidate, base, new), self.book.known(name), 0
        while known is None or len(trial.samples) < len(self.book.recorded(name)):
            trial = self._pair(trial, pairs)
            pairs += 1
            refused = self._refused(trial, candidate)
            if known is not None or (
                refused is None and pairs < min(most, PAIRS[stage]) and self._budget.affords_pair(stage.value, reserve)
            ):
                continue
            if refused is not None:
                return self.book.decide(rejected(trial, refused))
            verdict = self._judged(trial)
            if verdict.decision != Decision.INCONCLUSIVE.value or not self._may_yet(
                trial, verdict, pairs, reserve, most
            ):
                return self.book.decide(verdict)
        return known

    def _judged(self, trial: Trial) -> Verdict:
        assert self._noise is not None
        return self._judge(trial, self._noise, self.book.record.asked, self.book.earlier(trial))

    def _may_yet(self, trial: Trial, verdict: Verdict, pairs: int, reserve: int, most: int) -> bool:
        """Whether more processes could decide it, and there is time for them."""
        more = max(1, verdict.speed.more_as_measured if verdict.speed else 0, verdict.gate.more if verdict.gate else 0)
        if trial.stage == Stage.LASTING.value:
            more = 1  # its speed is proven; a second run tells whether the baseline repeats itself so far
        return pairs + more <= most and self._budget.affords_pair(trial.stage, reserve)

    def _refused(self, trial: Trial, candidate: Candidate | None) -> str | None:
        """Why the new arm needs no statistics: it failed, or what was tried did not come about."""
        last = trial.samples[-1]
        if last.ended != EndReason.MEASURED.value:
            who = "" if last.arm == NEW else "what was kept before failed here, "
            return f"{who}{last.ended}: {last.why}" if last.why else f"{who}{last.ended}"
        new = trial.of(NEW)
        for outcome in new[-1].outcomes if new else ():
            if candidate is not None and outcome.name == candidate.entry and outcome.status != Status.APPLIED.value:
                return f"{outcome.status}: {outcome.why}"
        return None

    # Samples

    def _pair(self, trial: Trial, pair: int) -> Trial:
        """A B, then B A: what drifts weighs on both alike. Both of a pair have the same seeds."""
        for arm, nudge in self._arms(trial, pair):
            index, known = len(trial.samples), self.book.recorded(trial.name)
            sample = known[index] if index < len(known) else self._sample(trial, arm, pair, nudge)
            trial = replace(trial, samples=(*trial.samples, sample))
            self._count_in(trial.name, index, sample)
            if trial.stage == Stage.NOISE.value:
                self._learn(trial)  # before it is kept: a baseline that is refused is measured anew when it goes on
            self.book.put(trial)
            if sample.ended != EndReason.MEASURED.value:
                break
        return trial

    def _arms(self, trial: Trial, pair: int) -> list[tuple[str, float]]:
        """With the nudge of each. A longer run that may differ needs a longer run of the baseline that does."""
        first, second = (BASE, NEW) if pair % 2 == 0 else (NEW, BASE)
        if trial.stage == Stage.NOISE.value:
            return [(first, NUDGE if first == NEW else 0.0), (second, NUDGE if second == NEW else 0.0)]
        differs = trial.stage == Stage.LASTING.value and pair == 0 and trial.risk != Risk.EXACT.value
        return [(first, 0.0), (second, 0.0), *([(BASE, NUDGE)] if differs else [])]

    def _count_in(self, trial: str, index: int, sample: Sample) -> None:
        """Once, however often it is played."""
        if (trial, index) not in self._played:
            self._played.add((trial, index))
            self._to_come = max(0, self._to_come - 1)
            self.book.spent += sample.seconds

    def _sample(self, trial: Trial, arm: str, pair: int, nudge: float) -> Sample:
        own = arm == BASE or trial.stage == Stage.NOISE.value
        for _ in range(1 + RETRIES):
            sample = self._runner.run(self._spec(trial, arm, pair, nudge))
            if not own or trial.stage == Stage.NOISE.value or sample.ended == EndReason.MEASURED.value:
                return sample
        if trial.base:
            return sample  # what was kept fails here: not to be stacked upon
        raise BaselineUnusable(
            f"the command by itself worked before and now does not: {sample.ended} ({sample.why}); "
            f"go on when it does: hotlap tune --resume {self.book.record.run}"
        )

    def _spec(self, trial: Trial, arm: str, pair: int, nudge: float) -> Spec:
        first = not self._played and self.book.record.asked.metric is not None and self.book.record.asked.steps is None
        long = trial.stage == Stage.LASTING.value
        steps = self._long_steps if long else self._steps_on_top if trial.stage == Stage.STACKED.value else self._steps
        self._tell(trial, arm, pair, 0, steps)
        return Spec(
            number=len(self._played),
            arm=arm,
            choices=trial.base if arm == BASE else trial.new,
            seed_shift=0 if long else pair,  # a second pair tells whether the baseline repeats itself that far
            steps=steps,
            least=LEAST_STEPS,
            seconds=self._seconds(trial, first),
            nudge=nudge,
            readings=1 if first else 0,
        )

    @property
    def _steps_on_top(self) -> int:
        """What is kept takes less time for its steps: as much of it is measured by more of them."""
        return self._length.longer(self._steps, self._best) if self.book.record.asked.steps is None else self._steps

    def _seconds(self, trial: Trial, first: bool) -> float:
        """For one process; what compiles for long must leave time for the others."""
        limit, budget = self._length.limit, self._budget.seconds
        if first:
            return max(limit, METRIC_SHARE * budget)
        if trial.stage == Stage.NOISE.value:
            return limit
        cost = self._budget.cost
        if trial.stage == Stage.LASTING.value:
            cost = self._long_cost(self._long_steps)
            limit = max(limit, PATIENCE * cost)
        return min(limit, max(SLOWER * cost, min(PROCESS_SHARE * budget, self._budget.left)))

    def _learn(self, noise: Trial) -> None:
        """From the baseline: what a process costs, and how far it must train to tell the metric."""
        asked, samples = self.book.record.asked, noise.samples
        refuse_baseline(samples, asked, self.book.record.run)
        if len(samples) == 1 and asked.metric is not None and asked.steps is None:
            ahead = 2 + int(STALE / self._length.step_seconds)
            self._steps = max(self._steps, samples[0].readings[0].step + ahead)
        self._budget.learn(samples)
        needed = self.book.spent + (FIRST_TRIALS - len(samples)) * self._budget.cost
        if len(samples) == 1 and needed > asked.budget_seconds:
            raise BudgetTooSmall(
                f"one process took {self._budget.cost:.0f} s for {steps_of(samples[0])} steps, which leaves no time to "
                f"compare in {asked.budget_seconds:.0f} s; give more: --budget {needed * 3 / 60 + 1:.0f}m"
            )

    # Telling

    def _keep(self, kept: tuple[Choice, ...], ratio: float, by: str | None = None) -> None:
        """`by` is the trial that proved it."""
        trial = self.book.found(by) if by is not None else None
        self._best = ratio
        if trial is not None:
            more = self._steps_on_top - self._steps if trial.stage != Stage.STACKED.value else 0
            self._budget.keep(trial.of(NEW), more * self._length.step_seconds / ratio)
        self.book.keep(kept)

    def _tell(self, trial: Trial, arm: str, pair: int, step: int, steps: int) -> None:
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
