"""What is kept, layer by layer: proven one by one on top of each other, or several together where time is short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from hotlap.catalog import entries, in_conflict
from hotlap.plan.candidates import choice_of
from hotlap.records.plan import Choice, Status
from hotlap.records.trial import Stage
from hotlap.records.tune_record import Candidate
from hotlap.records.verdict import Decision, Verdict
from hotlap.trial.runner import NEW
from hotlap.workflows.tune.book import Book, together_name, trial_name
from hotlap.workflows.tune.budget import Budget
from hotlap.workflows.tune.figures import is_harmless, ratio_of

RESERVE = 4  # processes, to prove at last what is kept
MOST_PAIRS, LONG_PAIRS = 8, 2
Choices = tuple[Choice, ...]


class Ask(Protocol):
    def __call__(
        self,
        name: str,
        stage: Stage,
        candidate: Candidate | None,
        base: Choices,
        new: Choices,
        reserve: int,
        most: int = MOST_PAIRS,
    ) -> Verdict: ...


class Keep(Protocol):
    def __call__(self, kept: Choices, ratio: float, by: str | None = None) -> None: ...


class Layer(NamedTuple):
    """What was proven at once, by what, and how many times as fast all is with it."""

    choices: Choices
    proof: Verdict
    ratio: float


class LayerSearch:
    def __init__(self, book: Book, budget: Budget, ask: Ask, keep: Keep, long_enough: Callable[[], bool]) -> None:
        """`long_enough`: whether there is time left for the longer run of the last stage."""
        self._book, self._budget, self._ask, self._keep = book, budget, ask, keep
        self._long_enough = long_enough
        self._layers: list[Layer] = []
        self._spare: list[Layer] = []  # faster alone, but not on top of the others
        self._names: set[str] = set()  # of the last trials

    @property
    def kept(self) -> Choices:
        return tuple(choice for layer in self._layers for choice in layer.choices)

    def screened(self, group: Sequence[Candidate]) -> bool:
        """What won while it trained, against the baseline on fresh samples: none of these has picked it."""
        choices = tuple(choice_of(one) for one in group)
        verdict = self._ask(f"screened-{len(group)}", Stage.FINAL, None, (), choices, 0)
        if verdict.decision != Decision.KEEP.value:
            return False
        self._layers.append(Layer(self._at_work(verdict.trial, choices), verdict, ratio_of(verdict)))
        self._keep(self.kept, ratio_of(verdict), verdict.trial)
        return True

    def winners(self, winners: Sequence[tuple[Candidate, Verdict]]) -> None:
        """Those that are faster alone, the most gainful first; what fails on top of the others is peeled off."""
        for candidate, alone in winners:
            against = self._against(candidate)
            layer = Layer((choice_of(candidate),), alone, ratio_of(alone))
            if not self._layers:
                self._layers.append(layer)
                continue
            self._spare.append(layer)
            if against is not None:
                why = f"faster alone, but it excludes {against}, which gains more"
                self._book.not_tried(candidate.entry, why)
            elif not self._affords(1):
                self._book.not_tried(candidate.entry, "faster alone, but no budget left to try it with the others")
            elif self._try([candidate]).decision == Decision.KEEP.value:
                self._spare.remove(layer)

    def chances(self, chances: Sequence[Candidate]) -> list[Candidate]:
        """Those that showed nothing alone, were refused, or were not looked at: the step may now wait for them.

        One by one where something is kept and there is time for all, together where there is not. Those for which no
        time was left are returned.
        """
        left = [one for one in chances if not self._is_excluded(one)]
        if len(left) > 1 and not (self._layers and self._affords(len(left))):
            left = self._together(left)
        untried = []
        for one in left:
            if not self._layers or not self._affords(1):
                untried.append(one)
            elif not self._is_excluded(one):
                self._try([one])
        return untried

    def _together(self, left: Sequence[Candidate]) -> list[Candidate]:
        """Those still to be tried. What harms or slows together is tried by halves, the half that may gain more first;
        what shows nothing together shows nothing in parts.
        """
        group = self._that_go_together(left)
        if len(group) < 2 or not self._affords(1):
            return list(left)
        rest = [one for one in left if one not in group]
        verdict = self._try(group)
        if verdict.decision == Decision.KEEP.value or is_harmless(verdict):
            return rest
        half = (len(group) + 1) // 2
        again = self._together(group[:half])
        return [*again, *self._together(group[half:]), *rest]

    def _that_go_together(self, left: Sequence[Candidate]) -> list[Candidate]:
        """Of those a plan has by itself; where two exclude each other, the one that may gain more."""
        group: list[Candidate] = []
        for one in left:
            excluded = any(in_conflict(one.entry, other.entry) for other in group)
            if entries()[one.entry].automatic and not excluded and self._against(one) is None:
                group.append(one)
        return group

    def _try(self, group: Sequence[Candidate]) -> Verdict:
        """On top of what is kept, or of nothing; kept where that is proven."""
        kept, added = self.kept, tuple(choice_of(one) for one in group)
        single = group[0] if len(group) == 1 else None
        prefix = f"stacked-{len(kept) + 1}"
        name = trial_name(prefix, single) if single else together_name(prefix, group)
        verdict = self._ask(name, Stage.STACKED, single, kept, (*kept, *added), RESERVE)
        if verdict.decision != Decision.KEEP.value:
            return verdict
        at_work = added if single else self._at_work(name, added)
        ratio = (self._layers[-1].ratio if self._layers else 1.0) * ratio_of(verdict)
        self._layers.append(Layer(at_work, verdict, ratio))
        self._keep(self.kept, ratio, name)
        return verdict

    def _at_work(self, name: str, added: Choices) -> Choices:
        """Without those that did nothing, which is told."""
        trial = self._book.found(name)
        outcomes = {one.name: one for one in trial.of(NEW)[-1].outcomes} if trial is not None else {}
        idle = [one for one in added if one.name in outcomes and outcomes[one.name].status != Status.APPLIED.value]
        for one in idle:
            self._book.not_tried(one.name, f"{outcomes[one.name].status}: {outcomes[one.name].why}")
        return tuple(one for one in added if one not in idle)

    def _is_excluded(self, candidate: Candidate) -> bool:
        against = self._against(candidate)
        if against is not None:
            self._book.not_tried(candidate.entry, f"it excludes {against}, which is kept")
        return against is not None

    def _against(self, candidate: Candidate) -> str | None:
        return next((one.name for one in self.kept if in_conflict(one.name, candidate.entry)), None)

    def _affords(self, trials: int) -> bool:
        return self._budget.affords_pair(Stage.STACKED.value, RESERVE, pairs=2 * trials)

    def finish(self) -> tuple[Verdict | None, Verdict | None]:
        """What is kept against the baseline, on fresh samples; and the same for as long as an epoch.

        What does harm or becomes slow only then is taken out, and what is left is proven again.
        """
        proven, lasting = self._final(), None
        while proven is not None and self._long_enough():
            kept = self.kept
            lasting = self._ask(self._named("lasting"), Stage.LASTING, None, (), kept, 0, LONG_PAIRS)
            if lasting.decision == Decision.KEEP.value:
                break
            self._take_out()
            proven, lasting = self._final(), None
        self._keep(self.kept, ratio_of(proven) if proven is not None else 1.0)
        return proven, lasting

    def _named(self, stem: str) -> str:
        """A trial of its own each time: "final-2", and "final-2-again" where two others had been tried."""
        name = f"{stem}-{len(self.kept)}"
        while name in self._names:
            name += "-again"
        self._names.add(name)
        return name

    def _final(self) -> Verdict | None:
        """All that is kept against the baseline, on fresh samples: what was picked as the best was lucky, too.

        The last layer is peeled off until that is proven.
        """
        while self._layers:
            first = self._layers[0].proof
            if len(self._layers) == 1 and first.stage == Stage.FINAL.value:
                return first
            lone = len(self._layers) == 1 and first.stage == Stage.ALONE.value
            if lone and not self._budget.affords_pair(Stage.FINAL.value, 2):
                return first
            kept = self.kept
            verdict = self._ask(self._named("final"), Stage.FINAL, None, (), kept, 0)
            if verdict.decision == Decision.KEEP.value:
                return verdict
            self._layers.pop()
        return None

    def _take_out(self) -> None:
        """Each layer alone for as long: those that hold are left. Where there is no time to look, none is."""
        layers, self._layers = self._layers, []
        for layer in layers if len(layers) > 1 else ():
            if not self._long_enough():
                break
            name = "lasting-of-" + "+".join(one.name for one in layer.choices)
            alone = self._ask(name, Stage.LASTING, None, (), layer.choices, 0, LONG_PAIRS)
            if alone.decision == Decision.KEEP.value:
                self._layers.append(layer)
        if len(self._layers) == len(layers):
            self._layers.pop()  # each holds alone, together they do not
        if not self._layers and self._spare:
            self._layers.append(self._spare.pop(0))
        for layer in layers:
            if layer not in self._layers:
                for one in layer.choices:
                    self._book.not_tried(
                        one.name, "kept at first, but not proven over the longer run of the last stage"
                    )
