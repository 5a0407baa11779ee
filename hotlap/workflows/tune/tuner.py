"""The order of a tune: the baseline against itself, each optimisation alone, stacked, and finally everything kept.

Every decision here follows from the record alone, time spent included: a resumed tune is replayed from its first trial,
with samples from the record instead of from processes, until one is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from hotlap.plan.candidates import choice_of, is_switched
from hotlap.plan.search import says_thinned, search
from hotlap.records.plan import Status
from hotlap.records.trial import Trial, TrialStage
from hotlap.records.tune_record import Candidate, Screening
from hotlap.records.verdict import Decision, Verdict
from hotlap.trial.runner import Runner
from hotlap.workflows.tune.book import Book, empty_trial, rejected, trial_name
from hotlap.workflows.tune.figures import is_harmless, ratio_of, speed_of
from hotlap.workflows.tune.layers import LayerSearch
from hotlap.workflows.tune.length import Length
from hotlap.workflows.tune.trials import MOST_PAIRS, PAIRS, Judge, Trials

TOGETHER = 8  # processes, to try several at once and to prove in the end what is kept
SHIFTED = 1.25  # times as fast: from here on something else may be the bottleneck
MORE = "give a larger --budget"
SCREEN_SHARE, SCREEN_LEAST, SCREEN_MOST = 0.2, 4.0, 60.0  # of the budget, and seconds, for the screening process
PROVING = 4  # processes, to prove what screening decided


class Tuner:
    def __init__(self, book: Book, length: Length, runner: Runner, judge: Judge) -> None:
        self._book = book
        self.trials = Trials(book, length, runner, judge)
        self._budget = self.trials.budget
        self._refused_alone: list[Candidate] = []
        self._not_alone: list[Candidate] = []  # tried only on top of what is kept, for lack of budget
        self._untried: list[tuple[Candidate, str]] = []  # not tried by themselves, but perhaps together with others

    def run(self) -> None:
        groups = [
            list(group) for _, group in groupby(self._book.record.candidates, key=lambda candidate: candidate.entry)
        ]
        self.trials.to_come = 6 + 4 * len(groups) + (6 if groups else 0)
        self.trials.against_itself()
        stack = LayerSearch(self._book, self.trials)
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
        self._book.change(finished=True)

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
            self._book.not_tried(name, f"screened while one process trained: {tried[-1].why}")
        elif outcome is not None and outcome.status != Status.APPLIED and decided.is_over:
            self._book.not_tried(name, f"{outcome.status}: {outcome.why}")
        else:
            return True
        return False

    def _screened(self, groups: Sequence[Sequence[Candidate]]) -> Screening | None:
        known = self._book.record.screened
        if known is None:
            names = {group[0].entry for group in groups if is_switched(group[0].entry)}
            seconds = min(
                SCREEN_MOST, SCREEN_SHARE * self._budget.seconds, self._budget.left - PROVING * self._budget.cost
            )
            if not names or seconds < SCREEN_LEAST:
                return None
            known = self.trials.screened(names, seconds)
            if known is None:
                return None
            self._book.spent += known.seconds
            self._book.change(screened=known)
        else:
            self._book.spent += known.seconds
        return known

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
            verdict = self.trials.ask(name, TrialStage.ALONE, candidate, (), (choice,), reserve, most)
            if verdict.decision == Decision.KEEP:
                winners.append((candidate, verdict))
                winners.sort(key=lambda pair: -ratio_of(pair[1]))
                self.trials.keep(
                    (choice_of(winners[0][0]),), ratio_of(winners[0][1]), trial_name("alone", winners[0][0])
                )
            elif is_harmless(verdict):
                doubtful.append(candidate)

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
        if self.trials.best < SHIFTED:
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
            self._book.not_tried(group[0].entry, note)
        finding, found = search(list(by_value)), list[tuple[float, Candidate]]()
        for value in finding.values():
            if found and not self._budget.affords(8):
                break
            speed = self._try_once(by_value[value])
            finding.tell(value, speed)
            if speed > 0:
                found.append((speed, by_value[value]))
        for value in finding.left_out:
            self._book.not_tried(f"{group[0].entry}={value}", "two other values were slower when each was tried once")
        return found

    def _try_once(self, candidate: Candidate) -> float:
        """Return the speed of a candidate after one pair; 0 if it failed or did nothing."""
        trial = self.trials.pair(
            empty_trial(trial_name("alone", candidate), TrialStage.ALONE, candidate, (), (choice_of(candidate),)), 0
        )
        refused = self.trials.refused(trial, candidate)
        if refused is None and self._does_harm(trial):
            return 0.0
        if refused is None:
            return speed_of(trial)
        self._book.decide(rejected(trial, refused))
        if refused.startswith(Status.REFUSED):
            self._refused_alone.append(candidate)
        return 0.0

    def _does_harm(self, trial: Trial) -> bool:
        """Whether one pair already shows harm, so that no more are spent on it."""
        verdict = self.trials.judged(trial)
        if verdict.gate is None or verdict.gate.passed is not False:
            return False
        self._book.decide(verdict)
        return True

    def _reject_slower(self, candidate: Candidate, best: Candidate) -> None:
        trial = self._book.found(trial_name("alone", candidate))
        if trial is None or self._book.known(trial.name) is not None:
            return
        judged = self.trials.judged(trial)
        why = f"{candidate.entry}={best.value} was faster when each value was tried once"
        self._book.decide(replace(judged, decision=Decision.REJECT, why=why))

    def _chances(self, doubtful: Sequence[Candidate], kept: bool) -> list[Candidate]:
        """Return the candidates to try on top of what is kept, in the order of their likely gain.

        If the step is hardly shorter than before, what showed nothing alone would show nothing on top either, except
        several together.
        """
        again = doubtful if self.trials.best >= SHIFTED or not kept else ()
        chances = [*self._refused_alone, *self._not_alone, *again, *(candidate for candidate, _ in self._untried)]
        return [candidate for candidate in self._book.record.candidates if candidate in chances]

    def _report_untried(self, untried: Sequence[Candidate], kept: bool) -> None:
        known = dict(self._untried)
        for candidate in untried:
            if candidate in known or kept:
                self._book.not_tried(
                    candidate.entry, known.get(candidate, f"no budget left to try it on top of what is kept; {MORE}")
                )

    def _finish(self, stack: LayerSearch) -> None:
        speedup, lasting = stack.finish()
        self._book.change(speedup=speedup, lasting=lasting)
        self._budget.last_stage = 0.0
        for candidate in self._not_alone:
            if choice_of(candidate) in stack.kept and self._budget.affords(2):  # what it does alone, for the report
                self.trials.ask(
                    trial_name("alone", candidate),
                    TrialStage.ALONE,
                    candidate,
                    (),
                    (choice_of(candidate),),
                    reserve=0,
                    most=1,
                )
