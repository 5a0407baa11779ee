"""In the user's process: applies the plan, entry by entry, and tells what became of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hotlap.catalog import entries
from hotlap.catalog.gpus import gpu_name, gpus
from hotlap.catalog.moments import Moments
from hotlap.catalog.site import Site
from hotlap.model import private
from hotlap.model.codec import SCHEMA, to_json
from hotlap.model.plan import Choice, Circumstances, Outcome, Outcomes, Status
from hotlap.model.session import Session
from hotlap.patch.entry import OUTCOMES
from hotlap.patch.seams import Seams
from hotlap.patch.voice import say

NO_GPU = "no GPU that torch can use"
SETTLED = 6  # optimizer steps, then every entry has had its moment


def start(torch: Any, session: Session, seams: Seams) -> Callable[[], None]:
    """Called once torch is imported; the result is called when the process ends."""
    differs = None if session.proven is None else difference(session.proven, torch)
    if differs is not None:
        say(f"the saved plan was proven under {differs}; running with the plan 'safe' instead")
    running = Running(torch, session.choices if differs is None else session.otherwise, seams)
    running.folder, running.quiet = Path(session.folder), session.quiet
    seams.ledger.later(running.close)  # a child made by fork closes the seams: a loader's workers are left alone
    running.begin()
    return running.tell


def difference(proven: Circumstances, torch: Any) -> str | None:
    """What is not as it was when the plan was proven; the command and its source are compared before it starts."""
    if proven.torch != str(torch.__version__):
        return f"torch {proven.torch}, this is {torch.__version__}"
    here = hardware(torch)
    return f"{proven.hardware}, this is {here}" if proven.hardware != here else None


def hardware(torch: Any) -> str:
    if count := gpus(torch):
        return f"{count} × {gpu_name(torch)}"
    return f"{os.cpu_count()} cores, {platform.machine()}"


class Running:
    def __init__(self, torch: Any, choices: Iterable[Choice], seams: Seams) -> None:
        self.torch, self.seams = torch, seams
        self._moments = Moments(seams)
        self.sites = [self._site(choice) for choice in choices]
        for site in self.sites:
            site.alongside = frozenset(each.name for each in self.sites)
        self.sites.sort(key=lambda site: list(entries()).index(site.name))
        self.folder: Path | None = None
        self.quiet = True
        self._steps = 0
        self._told = False

    def _site(self, choice: Choice) -> Site:
        entry = entries()[choice.name]
        site = Site(choice.name, entry, entry.parse(choice.value), self.torch, self.seams, self._moments)
        site.on_applied = site.on_withdrawn = self._changed
        site.asked = choice.asked
        return site

    def begin(self) -> None:
        for site in self.sites:
            why = unmet(site, self.torch)
            if why is not None:
                site.no_effect(why)
                continue
            try:
                site.entry.apply(site)
            except Exception as error:
                if self.seams.guard.strict:
                    raise
                site.withdraw(f"it could not be applied ({type(error).__name__}: {error})")
        self.seams.stepping.subscribe(after=self._stepped)
        self.seams.when_silent.append(self._fall_silent)

    def _stepped(self, *_: Any) -> None:
        self._steps += 1
        if self._steps >= SETTLED:
            self.seams.stepping.unsubscribe(self._stepped)
            self.tell()

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(site.outcome for site in self.sites)

    def tell(self) -> None:
        """Said once the training is under way, written again at the end: an entry may be withdrawn late."""
        if self._steps == 0:
            return  # a process that does not train has nothing to say
        if self.folder is not None:
            record = Outcomes(schema=SCHEMA, pid=os.getpid(), outcomes=self.outcomes)
            private.write_text(self.folder / f"{OUTCOMES}-{os.getpid()}.json", to_json(record))
        if not self._told and self._speaks:
            say(*lines(self.outcomes))
        self._told = True

    def _changed(self, outcome: Outcome) -> None:
        """Applied after all, to a model that is trained later, or withdrawn."""
        if self._told and self._speaks:
            say(*lines([outcome]))

    @property
    def _speaks(self) -> bool:
        return not self.quiet and os.environ.get("RANK", "0") == "0"

    def close(self) -> None:
        for site in reversed(self.sites):
            site.close()

    def _fall_silent(self) -> None:
        """In a forked child where nothing may be taken back: entries let every call pass."""
        for site in self.sites:
            site.closed = True


def unmet(site: Site, torch: Any) -> str | None:
    """Why an entry cannot do anything on this machine."""
    entry = site.entry
    if entry.device == "cuda" and not gpus(torch):
        return NO_GPU
    numbers = torch.__version__.split("+")[0].split(".")[:2]
    if all(part.isdigit() for part in numbers) and tuple(map(int, numbers)) < entry.torch:
        return f"needs torch {'.'.join(map(str, entry.torch))}, this is {torch.__version__}"
    return None


def lines(outcomes: Iterable[Outcome]) -> list[str]:
    """One line per outcome, what was applied first, and one for all that need a GPU where there is none."""
    order = [Status.APPLIED.value, Status.WITHDRAWN.value, Status.REFUSED.value, Status.NO_EFFECT.value]
    sorted_ = sorted(outcomes, key=lambda one: order.index(one.status))
    for_gpus = [one for one in sorted_ if one.why == NO_GPU]
    told = [f"{one.status}: {one.name} ({one.why})" for one in sorted_ if one not in for_gpus or len(for_gpus) == 1]
    if len(for_gpus) > 1:
        told.append(f"{Status.NO_EFFECT.value}: {len(for_gpus)} that need a GPU ({NO_GPU})")
    return told or ["nothing to apply"]
