"""Applies the plan in the user's process, entry by entry, and reports the outcomes."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hotlap.catalog import entries
from hotlap.catalog.entry import When
from hotlap.control.preparations import Preparations
from hotlap.control.ticks import NO_OPTIMIZER
from hotlap.control.wiring import Batches, Wiring, sentence_of
from hotlap.machine import NO_GPU, gpu_name, gpus, usable_cores
from hotlap.patch.entry import DECISIONS, OUTCOMES
from hotlap.patch.seams import Seams
from hotlap.patch.signals import comes_from_outside
from hotlap.patch.voice import say
from hotlap.records import private
from hotlap.records.codec import SCHEMA, to_json
from hotlap.records.decisions import BlockTrial, Decisions
from hotlap.records.plan import Choice, Circumstances, Outcome, Outcomes, Risk, Status
from hotlap.records.session import Session
from hotlap.runtime.root_discovery import RootDiscovery
from hotlap.runtime.site import Site

SETTLED = 6  # optimizer steps, after which every entry has had its chance to apply


def start(torch: Any, session: Session, seams: Seams) -> Callable[[], None]:
    """Apply the plan once torch is imported; the returned function is called when the process ends."""
    return enter(torch, session, seams).tell


def enter(torch: Any, session: Session, seams: Seams) -> AppliedPlan:
    differs = None if session.proven is None else difference(session.proven, torch)
    if differs is not None:
        say(f"the saved plan was proven under {differs}; running with the plan 'safe' instead")
    choices = session.choices if differs is None else session.otherwise
    running = AppliedPlan(torch, choices, seams, decides=session.decides)
    running.folder, running.quiet, running.verbose = Path(session.folder), session.quiet, session.verbose
    if running.deciding is not None:
        running.deciding.remembers(session, hardware(torch))
    seams.ledger.later(running.close)  # a forked child closes the seams: loader workers run unchanged
    running.begin()
    return running


def difference(proven: Circumstances, torch: Any) -> str | None:
    """Return how torch or the hardware differs from where the plan was proven, or None.

    The command and its source are compared before it starts.
    """
    if proven.torch != str(torch.__version__):
        return f"torch {proven.torch}, this is torch {torch.__version__}"
    here = hardware(torch)
    return f"{proven.hardware}, this is {here}" if proven.hardware != here else None


def hardware(torch: Any) -> str:
    if count := gpus(torch):
        return f"{count} × {gpu_name(torch)}"
    return f"{usable_cores()} cores, {platform.machine()}"


class AppliedPlan:
    """The optimisations applied in this process.

    With `decides` the program starts unchanged, and entries that can be switched between steps are tried while it
    trains.
    """

    def __init__(self, torch: Any, choices: Iterable[Choice], seams: Seams, decides: bool = False) -> None:
        self.torch, self.seams = torch, seams
        self._root_discovery = RootDiscovery(seams)
        chosen = sorted(choices, key=lambda choice: list(entries()).index(choice.name))
        tried = [choice for choice in chosen if decides and _is_tried(choice)]
        self.sites = [
            self._site(choice) for choice in chosen if choice not in tried and not (decides and _is_left_out(choice))
        ]
        for site in self.sites:
            site.alongside = frozenset(sibling.name for sibling in self.sites)
        self.deciding = self._to_decide(tried) if decides else None
        self.folder: Path | None = None
        self.quiet, self.verbose = True, False
        self._steps = self._backwards = 0
        self._reported = False

    def _site(self, choice: Choice) -> Site:
        entry = entries()[choice.name]
        site = Site(choice.name, entry.code, entry.parse(choice.value), self.torch, self.seams, self._root_discovery)
        site.on_applied = self._changed
        site.on_withdrawn = lambda site: self._changed(site.outcome)
        site.asked = choice.asked
        return site

    def begin(self) -> None:
        for site in self.sites:
            self._begin(site)
        if self.deciding is not None:
            self.deciding.ahead.begin(lambda site: unmet(site, self.torch) is None)
            self.deciding.begin(self._decided, self._could_not_decide, self._was_tried)
        else:
            self.seams.stepping.subscribe(after=self._stepped)
            self.seams.backward.subscribe(after=self._went_back)
        self.seams.when_silent.append(self._fall_silent)

    def _begin(self, site: Site) -> None:
        why = unmet(site, self.torch)
        if why is not None:
            site.no_effect(why)
            return
        try:
            entries()[site.name].apply(site)
        except Exception as error:
            if self.seams.guard.strict or comes_from_outside(error):
                raise
            site.withdraw(f"it could not be applied ({type(error).__name__}: {error})")

    def _to_decide(self, tried: list[Choice]) -> Wiring:
        by_name = {choice.name: choice for choice in tried}
        ahead = Preparations({name: self._site(choice) for name, choice in by_name.items() if entries()[name].ahead})
        batches = Batches([site for site in self.sites if entries()[site.name].when is When.LOADER and not site.asked])
        return Wiring(
            self.torch,
            self.seams,
            list(by_name),
            batches,
            lambda name, arm: self._tried(by_name[name], arm),
            ahead,
        )

    def _tried(self, choice: Choice, arm: frozenset[str]) -> Site:
        site = self._site(choice)
        site.on_applied, site.on_withdrawn = lambda outcome: None, self._withdrawn
        site.alongside = arm | {sibling.name for sibling in self.sites}
        if self.deciding is not None and choice.name in self.deciding.doubted:
            site.refused(self.deciding.doubted[choice.name])
        elif entries()[site.name].risk is not Risk.EXACT and self._decides_beside_others:
            site.refused("training spans several machines, and each would decide for itself")
        else:
            self._begin(site)
        return site

    @property
    def _decides_beside_others(self) -> bool:
        together = self.deciding is not None and self.deciding.ranks.together
        return not together and _is_one_of_many(self.torch)

    # What is reported

    def _stepped(self, *_: Any) -> None:
        self._steps += 1
        if self._steps >= SETTLED:
            self._settle()

    def _went_back(self, *_: Any) -> None:
        """Count a backward pass: without an optimizer, backward passes count as steps."""
        self._backwards += 1
        if self._backwards >= NO_OPTIMIZER:
            self._steps = max(1, self._steps)
            self._settle()

    def _settle(self) -> None:
        self.seams.stepping.unsubscribe(self._stepped)
        self.seams.backward.unsubscribe(self._went_back)
        self.tell()

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        found = tuple(site.outcome for site in self.sites)
        return found if self.deciding is None else (*found, *self.deciding.outcomes)

    def tell(self) -> None:
        """Print the outcomes once, and write them each time: an entry may be withdrawn late."""
        if self.deciding is not None:
            self._report_decisions(is_end=True)
        elif self._steps:  # a process that does not train has nothing to report
            self._save()
            if self._speaks and not self._reported:
                say(*lines(self.outcomes))
            self._reported = True

    def _decided(self) -> None:
        self._report_decisions(is_end=False)

    def _report_decisions(self, is_end: bool) -> None:
        assert self.deciding is not None
        if self.deciding.steps == 0:
            return
        self._save()
        if self._speaks:
            say(self.deciding.line(is_end), *(lines(self.outcomes) if self.verbose and not self._reported else ()))
        self._reported = True

    def _write(self, folder: Path) -> None:
        record = Outcomes(schema=SCHEMA, pid=os.getpid(), outcomes=self.outcomes)
        private.write_text(folder / f"{OUTCOMES}-{os.getpid()}.json", to_json(record))
        decisions = self._at_once() if self.deciding is None else self.deciding.record()
        private.write_text(folder / f"{DECISIONS}-{os.getpid()}.json", to_json(decisions))
        if self.deciding is not None:
            self.deciding.remember()

    def _at_once(self) -> Decisions:
        on = tuple(outcome.name for outcome in self.outcomes if outcome.status == Status.APPLIED)
        return Decisions(
            schema=SCHEMA,
            pid=os.getpid(),
            on=on,
            tried=(),
            after=None,
            ratio=1.0,
            remembered=False,
            is_main=os.environ.get("RANK", "0") == "0",
            steps=self._steps,
            seconds=0.0,
            spent=0.0,
            is_over=True,
            ever_on=on,
            at_once=True,
            command=tuple(sys.orig_argv),
            machine=f"{hardware(self.torch)}, torch {self.torch.__version__}",
        )

    def _save(self) -> None:
        if self.folder is not None:
            with suppress(OSError):  # the disk is full or the folder gone: what was decided stands
                self._write(self.folder)

    def _was_tried(self, tried: BlockTrial) -> None:
        """Save at once, because the program may be killed at any step."""
        self._save()
        if self.verbose and self._speaks:
            say(sentence_of(tried))

    def _could_not_decide(self, error: Exception) -> None:
        if self.seams.guard.strict:
            raise error
        if self._speaks:
            say(
                f"choosing optimisations failed ({type(error).__name__}: {error}) and was switched off; "
                "your training continues"
            )

    def _changed(self, outcome: Outcome) -> None:
        """Report an entry that was applied late, to a model trained later, or withdrawn."""
        if self._reported and self._speaks and self.deciding is None:
            say(*lines([outcome]))

    def _withdrawn(self, site: Site) -> None:
        """Report a tried entry that gave wrong results; not every step is checked, so earlier ones may be wrong too."""
        if site.doubted and self.deciding is not None:
            why = self.deciding.doubted[site.name] = site.outcome.why
            if self._speaks:
                say(f"{site.name} is switched off for good: {why}; earlier steps may have been wrong too")

    @property
    def _speaks(self) -> bool:
        follows = self.deciding is not None and self.deciding.ranks.follows
        return not self.quiet and os.environ.get("RANK", "0") == "0" and not follows

    def close(self) -> None:
        if self.deciding is not None:
            self.deciding.end()
        for site in reversed(self.sites):
            site.close()

    def _fall_silent(self) -> None:
        """Let every call pass through, in a forked child where nothing may be undone."""
        for site in self.sites:
            site.closed = True
        if self.deciding is not None:
            self.deciding.fall_silent()


def _is_one_of_many(torch: Any) -> bool:
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)


def _is_tried(choice: Choice) -> bool:
    """Return whether the entry is tried between steps; one named by the user is on from the start."""
    return entries()[choice.name].when is When.STEP and not choice.asked


def _is_left_out(choice: Choice) -> bool:
    """Return whether the entry is skipped: it changes the process environment at start, so a tune or the user must
    choose it.
    """
    entry = entries()[choice.name]
    return entry.when is When.START and entry.environment is not None and not choice.asked


def unmet(site: Site, torch: Any) -> str | None:
    """Return why the entry cannot do anything on this machine, or None."""
    entry = entries()[site.name]
    if entry.device == "cuda" and not gpus(torch):
        return NO_GPU
    numbers = torch.__version__.split("+")[0].split(".")[:2]
    if all(number.isdigit() for number in numbers) and tuple(map(int, numbers)) < entry.torch:
        return f"needs torch {'.'.join(map(str, entry.torch))}, this is torch {torch.__version__}"
    return None


def lines(outcomes: Iterable[Outcome]) -> list[str]:
    """Return a line per outcome, applied ones first; entries that lack a GPU share one line."""
    order = [Status.APPLIED, Status.WITHDRAWN, Status.REFUSED, Status.NO_EFFECT]
    sorted_ = sorted(outcomes, key=lambda outcome: order.index(outcome.status))
    for_gpus = [outcome for outcome in sorted_ if outcome.why == NO_GPU]
    reported = [
        f"{outcome.status}: {outcome.name} ({outcome.why})"
        for outcome in sorted_
        if outcome not in for_gpus or len(for_gpus) == 1
    ]
    if len(for_gpus) > 1:
        reported.append(f"{Status.NO_EFFECT}: {len(for_gpus)} that need a GPU ({NO_GPU})")
    return reported or ["nothing to apply"]
