"""Searches for what to keep, layer by layer: proven one on top of the other, or several together if time is short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hotlap.catalog import entries, in_conflict
from hotlap.plan.candidates import choice_of
from hotlap.records.plan import Choice, Status
from hotlap.records.trial import TrialStage
from hotlap.records.tune_record import Candidate
from hotlap.records.verdict import Decision, Verdict
from hotlap.trial.runner import NEW
from hotlap.workflows.tune.book import Book, together_name, trial_name
from hotlap.workflows.tune.figures import is_harmless, ratio_of
from hotlap.workflows.tune.trials import Trials

RESERVE = 4  # processes, to prove in the end what is kept
LONG_PAIRS = 2
Choices = tuple[Choice, ...]


class Layer(NamedTuple):
    """Choices that were proven together, their proof, and how many times as fast everything is with them."""

    choices: Choices
    proof: Verdict
    ratio: float


class LayerSearch:
    def __init__(self, book: Book, trials: Trials) -> None:
        """Start with nothing kept."""
        self._book, self._trials = book, trials
        self._layers: list[Layer] = []
        self._spare: list[Layer] = []  # faster alone, but not on top of the others
        self._names: set[str] = set()  # of the last trials

    @property
    def kept(self) -> Choices:
        return tuple(choice for layer in self._layers for choice in layer.choices)

    def screened(self, group: Sequence[Candidate]) -> bool:
        """Prove the winners of screening against the baseline, on fresh samples that had no part in choosing them."""
        choices = tuple(choice_of(candidate) for candidate in group)
        verdict = self._trials.ask(f"screened-{len(group)}", TrialStage.FINAL, None, (), choices, 0)
        if verdict.decision != Decision.KEEP:
            return False
        self._layers.append(Layer(self._at_work(verdict.trial, choices), verdict, ratio_of(verdict)))
        self._trials.keep(self.kept, ratio_of(verdict), verdict.trial)
        return True

    def winners(self, winners: Sequence[tuple[Candidate, Verdict]]) -> None:
        """Stack candidates that are faster alone, the largest gain first; drop one that fails on top of the others."""
        for candidate, alone in winners:
            against = self._against(candidate)
            layer = Layer((choice_of(candidate),), alone, ratio_of(alone))
            if not self._layers:
                self._layers.append(layer)
                continue
            self._spare.append(layer)
            if against is not None:
                why = f"faster alone, but it cannot be combined with {against}, which gains more"
                self._book.not_tried(candidate.entry, why)
            elif not self._affords(1):
                self._book.not_tried(
                    candidate.entry, "faster alone, but there was no budget left to try it with the others"
                )
            elif self._try([candidate]).decision == Decision.KEEP:
                self._spare.remove(layer)

    def chances(self, chances: Sequence[Candidate]) -> list[Candidate]:
        """Try candidates that showed nothing alone, were refused, or were not tried: they may now be the bottleneck.

        They are tried one by one if something is kept and there is time for all, else together. Returns those for which
        no time was left.
        """
        left = [candidate for candidate in chances if not self._is_excluded(candidate)]
        if len(left) > 1 and not (self._layers and self._affords(len(left))):
            left = self._together(left)
        untried = []
        for candidate in left:
            if not self._layers or not self._affords(1):
                untried.append(candidate)
            elif not self._is_excluded(candidate):
                self._try([candidate])
        return untried

    def _together(self, left: Sequence[Candidate]) -> list[Candidate]:
        """Try candidates together and return those still to be tried.

        A group that does harm or slows is split in halves, the half that may gain more first. One that shows nothing is
        dropped, because its parts would show nothing either.
        """
        group = self._that_go_together(left)
        if len(group) < 2 or not self._affords(1):
            return list(left)
        rest = [candidate for candidate in left if candidate not in group]
        verdict = self._try(group)
        if verdict.decision == Decision.KEEP or is_harmless(verdict):
            return rest
        half = (len(group) + 1) // 2
        again = self._together(group[:half])
        return [*again, *self._together(group[half:]), *rest]

    def _that_go_together(self, left: Sequence[Candidate]) -> list[Candidate]:
        """Return the automatic candidates that can be combined; of two in conflict, the more promising one."""
        group: list[Candidate] = []
        for candidate in left:
            excluded = any(in_conflict(candidate.entry, other.entry) for other in group)
            if entries()[candidate.entry].automatic and not excluded and self._against(candidate) is None:
                group.append(candidate)
        return group

    def _try(self, group: Sequence[Candidate]) -> Verdict:
        """Try a group on top of what is kept, or of nothing; keep it if that is proven."""
        kept, added = self.kept, tuple(choice_of(candidate) for candidate in group)
        single = group[0] if len(group) == 1 else None
        prefix = f"stacked-{len(kept) + 1}"
        name = trial_name(prefix, single) if single else together_name(prefix, group)
        verdict = self._trials.ask(name, TrialStage.STACKED, single, kept, (*kept, *added), RESERVE)
        if verdict.decision != Decision.KEEP:
            return verdict
        at_work = added if single else self._at_work(name, added)
        ratio = (self._layers[-1].ratio if self._layers else 1.0) * ratio_of(verdict)
        self._layers.append(Layer(at_work, verdict, ratio))
        self._trials.keep(self.kept, ratio, name)
        return verdict

    def _at_work(self, name: str, added: Choices) -> Choices:
        """Return the choices without those that did nothing, which are reported."""
        trial = self._book.found(name)
        outcomes = {outcome.name: outcome for outcome in trial.of(NEW)[-1].outcomes} if trial is not None else {}
        idle = [
            choice for choice in added if choice.name in outcomes and outcomes[choice.name].status != Status.APPLIED
        ]
        for choice in idle:
            self._book.not_tried(choice.name, f"{outcomes[choice.name].status}: {outcomes[choice.name].why}")
        return tuple(choice for choice in added if choice not in idle)

    def _is_excluded(self, candidate: Candidate) -> bool:
        against = self._against(candidate)
        if against is not None:
            self._book.not_tried(candidate.entry, f"it cannot be combined with {against}, which is kept")
        return against is not None

    def _against(self, candidate: Candidate) -> str | None:
        return next((choice.name for choice in self.kept if in_conflict(choice.name, candidate.entry)), None)

    def _affords(self, trials: int) -> bool:
        return self._trials.budget.affords_pair(TrialStage.STACKED, RESERVE, pairs=2 * trials)

    def finish(self) -> tuple[Verdict | None, Verdict | None]:
        """Prove what is kept against the baseline, on fresh samples, and then once more for as long as an epoch.

        What does harm or becomes slow only then is taken out, and the rest is proven again.
        """
        proven, lasting = self._final(), None
        while proven is not None and self._trials.may_last():
            kept = self.kept
            lasting = self._trials.ask(self._named("lasting"), TrialStage.LASTING, None, (), kept, 0, LONG_PAIRS)
            if lasting.decision == Decision.KEEP:
                break
            self._take_out()
            proven, lasting = self._final(), None
        self._trials.keep(self.kept, ratio_of(proven) if proven is not None else 1.0)
        return proven, lasting

    def _named(self, stem: str) -> str:
        """Return a new trial name each time: "final-2", or "final-2-again" if two other choices were tried before."""
        name = f"{stem}-{len(self.kept)}"
        while name in self._names:
            name += "-again"
        self._names.add(name)
        return name

    def _final(self) -> Verdict | None:
        """Prove everything kept against the baseline, on fresh samples, because what was picked as best was also lucky.

        The last layer is dropped until the rest is proven.
        """
        while self._layers:
            first = self._layers[0].proof
            if len(self._layers) == 1 and first.stage == TrialStage.FINAL:
                return first
            lone = len(self._layers) == 1 and first.stage == TrialStage.ALONE
            if lone and not self._trials.budget.affords_pair(TrialStage.FINAL, 2):
                return first
            kept = self.kept
            verdict = self._trials.ask(self._named("final"), TrialStage.FINAL, None, (), kept, 0)
            if verdict.decision == Decision.KEEP:
                return verdict
            self._layers.pop()
        return None

    def _take_out(self) -> None:
        """Run each layer alone for as long and keep those that pass; without time for that, keep none."""
        layers, self._layers = self._layers, []
        for layer in layers if len(layers) > 1 else ():
            if not self._trials.may_last():
                break
            name = "lasting-of-" + "+".join(choice.name for choice in layer.choices)
            alone = self._trials.ask(name, TrialStage.LASTING, None, (), layer.choices, 0, LONG_PAIRS)
            if alone.decision == Decision.KEEP:
                self._layers.append(layer)
        if len(self._layers) == len(layers):
            self._layers.pop()  # each passes alone, but not together
        if not self._layers and self._spare:
            self._layers.append(self._spare.pop(0))
        for layer in layers:
            if layer not in self._layers:
                for choice in layer.choices:
                    self._book.not_tried(
                        choice.name, "kept at first, but not proven over the longer run of the last stage"
                    )
