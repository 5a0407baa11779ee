"""Connects the Decider to the catalogue's entries, and reports the results."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from hotlap.catalog import entries
from hotlap.control.arms import Arm, Arms, Begin
from hotlap.control.decider import Decider
from hotlap.control.findings import Candidate
from hotlap.control.preparations import Preparations
from hotlap.control.ranks import Ranks, ranks_of
from hotlap.control.starts import Starts
from hotlap.control.ticks import Ticks
from hotlap.control.timing import Marks
from hotlap.control.trials import GAIN
from hotlap.errors import RunFolderUnwritable
from hotlap.machine import NO_GPU, gpus
from hotlap.patch import late_dynamo
from hotlap.patch.seams import Seams
from hotlap.records import private
from hotlap.records.codec import SCHEMA, to_json
from hotlap.records.decisions import BlockTrial, Decisions, RememberedDecisions
from hotlap.records.plan import Outcome, Risk, Status
from hotlap.records.session import Session
from hotlap.runtime.site import Site
from hotlap.version import __version__

PROMISES = {
    Risk.EXACT: "losses equal to the bit",
    Risk.ROUNDING: "losses equal but for rounding",
    Risk.NUMERIC: "in lower precision",
}
DOUBTED = "some steps may have been wrong, as reported above"
MORE = "more: hotlap show"
NOT_YET = "not tried: the training ended first"


class Batches:
    """The entries that change how batches are made."""

    def __init__(self, sites: list[Site]) -> None:
        self.sites = sites
        self._waited: set[str] = set()

    def wait_while(self, waits: Callable[[], bool]) -> None:
        for site in self.sites:
            site.waits = partial(self._waits, site.name, waits)

    def _waits(self, name: str, waits: Callable[[], bool]) -> bool:
        if not waits():
            return False
        self._waited.add(name)
        return True

    def wait(self) -> None:
        self._waited.clear()

    def has_waited(self) -> bool:
        return bool(self.applied() & self._waited)

    @property
    def are_doubted(self) -> bool:
        return any(site.doubted for site in self.sites)

    def is_coming(self) -> bool:
        return any(site.coming and not site.idle for site in self.sites)

    def seconds_keeping(self) -> float:
        return sum(site.seconds_keeping for site in self.sites)

    def applied(self) -> Arm:
        at_work = [site for site in self.sites if not site.idle]
        return frozenset(site.name for site in at_work if site.outcome.status == Status.APPLIED)

    def off(self) -> None:
        for site in self.sites:
            if site.name in self.applied():
                site.withdraw("batches took longer with it than without")
                site.close()


class Wiring:
    def __init__(
        self,
        torch: Any,
        seams: Seams,
        names: list[str],
        batches: Batches,
        begin: Begin,
        ahead: Preparations,
    ) -> None:
        self._torch, self._names, self.batches, self.ahead = torch, names, batches, ahead
        self._starts = Starts(torch, seams, time.perf_counter)
        self._session: Session | None = None
        self._hardware, self._remembered = "", False
        self.doubted: dict[str, str] = {}  # entries that gave different results, and why
        order = [name for name in entries() if name in names]
        self._arms = Arms(begin, order, lambda name: entries()[name].retained)
        self._deciding = Decider(
            partial(Ticks, seams),
            self._arms,
            batches,
            Marks(torch),
            _candidates(order, ahead, torch),
            ranks=self._ranks,
            saved=lambda: late_dynamo.seconds_saved() + self._starts.saved,
        )
        batches.wait_while(lambda: self._deciding.orders.waits)

    def remembers(self, session: Session, hardware: str) -> None:
        """Start with what an earlier run of this command decided, to be measured again."""
        self._session, self._hardware = session, hardware
        then = session.remembered
        same = then is not None and (then.torch, then.hardware) == (str(self._torch.__version__), hardware)
        if then is not None and same and (arm := frozenset(then.on) & frozenset(self._names)):
            self._remembered = True
            self._deciding.begin_with(arm, frozenset(then.untried))

    @property
    def ranks(self) -> Ranks:
        return self._deciding.orders.ranks

    def _ranks(self) -> Ranks:
        session = self._session
        return ranks_of(self._torch, None if session is None else Path(session.folder), self._names)

    def remember(self) -> None:
        session, findings = self._session, self._deciding.findings
        if session is None or session.memory is None or not findings.is_over or not self._is_main:
            return
        record = RememberedDecisions(
            schema=SCHEMA,
            source=session.source,
            hotlap=__version__,
            torch=str(self._torch.__version__),
            hardware=self._hardware,
            on=tuple(sorted(self._switched_on)),
            untried=tuple(sorted(self._deciding.untried)),
        )
        with suppress(OSError, RunFolderUnwritable):  # it costs the next run only a few blocks
            file = Path(session.memory)
            draft = file.with_suffix(f".{os.getpid()}")
            private.make_folder(file.parent)
            private.write_text(draft, to_json(record))
            draft.replace(file)

    @property
    def _is_main(self) -> bool:
        """Whether this is the process that was started, or the first of several ranks."""
        if self.ranks.together:
            return not self.ranks.follows
        started = self._session is not None and self._session.speaker == os.getpid()
        return started or os.environ.get("RANK") == "0"

    def begin(
        self,
        on_decided: Callable[[], None],
        on_failed: Callable[[Exception], None],
        on_tried: Callable[[BlockTrial], None],
    ) -> None:
        self._deciding.on_decided, self._deciding.on_failed = on_decided, on_failed
        self._deciding.trials.on_tried = on_tried
        self._starts.begin()
        self._deciding.begin()

    def end(self) -> None:
        self._starts.end()
        self.ahead.end()
        self._deciding.end()

    def grant(self, seconds: float) -> None:
        """Allow trials so many more seconds."""
        self._deciding.account.grant(seconds)

    def fall_silent(self) -> None:
        for site in self._arms.sites:
            site.closed = True
        self.ahead.fall_silent()

    @property
    def steps(self) -> int:
        return self._deciding.steps

    @property
    def is_over(self) -> bool:
        """Whether everything was tried, including batches that are cached from the next epoch on."""
        findings = self._deciding.findings
        measured = {name for tried in findings.tried for name in tried.names}
        tried = findings.is_over and not self._deciding.is_waiting
        return tried and (not self.batches.is_coming() or bool(self.batches.applied() & measured))

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(map(self._outcome, self._names))

    def _outcome(self, name: str) -> Outcome:
        findings, site = self._deciding.findings, self._arms.seen.get(name)
        last = next(
            (tried for tried in reversed(findings.tried) if name in tried.names and tried.ratio is not None), None
        )
        if site is None:
            why = NO_GPU if entries()[name].device == "cuda" and not gpus(self._torch) else NOT_YET
            return Outcome(name=name, code=entries()[name].code, status=Status.NO_EFFECT, why=why)
        outcome = site.outcome
        if name in findings.on or last is None or outcome.status != Status.APPLIED:
            return outcome
        return Outcome(name=name, code=outcome.code, status=Status.NO_EFFECT, why=last.why, value=outcome.value)

    @property
    def on(self) -> Arm:
        """The entries that have an effect now."""
        return self._switched_on | self.batches.applied()

    @property
    def _switched_on(self) -> Arm:
        """The entries decided on and not withdrawn since."""
        sites = {name: self._arms.seen.get(name) for name in self._deciding.findings.on}
        gone = Status.WITHDRAWN
        return frozenset(name for name, site in sites.items() if site is None or site.outcome.status != gone)

    def record(self) -> Decisions:
        findings = self._deciding.findings
        return Decisions(
            schema=SCHEMA,
            pid=os.getpid(),
            on=tuple(sorted(self.on)),
            tried=tuple(findings.tried),
            after=findings.after,
            ratio=findings.ratio,
            remembered=self._remembered,
            is_main=self._is_main,
            steps=self.steps,
            seconds=time.perf_counter() - findings.began if findings.steps else 0.0,
            spent=self._deciding.account.spent,
            is_over=findings.is_over and not self._deciding.is_waiting,
            ever_on=tuple(sorted(self._ever_on)),
            command=tuple(sys.orig_argv),
            machine=f"{self._hardware}, torch {self._torch.__version__}" if self._hardware else "",
        )

    def line(self, is_end: bool = False) -> str:
        """Return one line for the user: what is on, and what it gains."""
        findings, more = self._deciding.findings, f" · {MORE}" if self._session is not None else ""
        if self.steps == 0:
            return "armed, waiting for training"
        begins = "at the end: " if is_end and findings.is_over else ""
        if not findings.tried:
            why = "an earlier run found nothing faster" if self._remembered else "nothing has been tried yet"
            return f"{self._over_before if is_end else why}{more}"
        taken = _ms(findings.after or 0.0)
        if not self.on and self.batches.is_coming() and not is_end:
            return f"caching batches as they come, to use once all are cached ({taken} a step so far){more}"
        if not self.on and self.doubted:
            return f"{begins}{DOUBTED}; the program runs unchanged ({taken} a step){more}"
        if not self.on:
            so_far = "" if findings.is_over and not self._deciding.is_waiting else " so far"
            return f"{begins}nothing makes it faster{so_far}; the program runs unchanged ({taken} a step){more}"
        worst = _worst(self.on | findings.ever_on)
        promise = DOUBTED if self.batches.are_doubted or self.doubted else PROMISES[worst]
        sooner = self._starts.sooner
        epochs = "" if sooner is None else f", epochs begin {sooner:.1f} s sooner"
        if findings.ratio < GAIN:
            return f"{begins}as fast as before ({taken} a step){epochs}, {promise}; on: {self._listed}{more}"
        times = f"{findings.ratio:.{1 if findings.ratio >= 1.95 else 2}f}× as fast"
        change = f"{_ms((findings.after or 0.0) * findings.ratio)} → {taken} a step"
        return f"{begins}{times} ({change}){epochs}, {promise}: {self._listed}{more}"

    @property
    def _over_before(self) -> str:
        said = f"the training ended after {self.steps} steps, before anything was decided"
        if not (ever := self._ever_on):
            return said
        return f"{said}; on for some of the steps: {_in_order(ever)}, {PROMISES[_worst(ever)]}"

    @property
    def _ever_on(self) -> Arm:
        """The entries that were ever on, including in an unfinished trial."""
        under_way = frozenset(site.name for site in self._arms.sites if site.outcome.status == Status.APPLIED)
        return self._deciding.findings.ever_on | under_way | self.batches.applied()

    @property
    def _listed(self) -> str:
        return _in_order(self.on)


def _in_order(names: Arm) -> str:
    return ", ".join(name for name in entries() if name in names)


def _worst(names: Arm) -> Risk:
    return max((entries()[name].risk for name in names), key=lambda risk: risk.rank)


def sentence_of(tried: BlockTrial) -> str:
    state = "on" if tried.kept else "off"
    return f"step {tried.at_step}: {', '.join(tried.names) or 'the rest'}: {tried.why}: {state}"


def _candidates(names: list[str], ahead: Preparations, torch: Any) -> list[Candidate]:
    """Return the candidates, likeliest to gain first; entries with small gains form one candidate."""
    alone = sorted((name for name in names if entries()[name].alone), key=lambda name: -entries()[name].reach)
    small = frozenset(names) - frozenset(alone)
    found = [
        Candidate(
            frozenset({name}),
            entries()[name].prepares,
            entries()[name].reach,
            partial(_is_possible, name, torch),
            partial(ahead.is_over, name),
        )
        for name in alone
    ]
    return [*found, Candidate(small)] if small else found


def _is_possible(name: str, torch: Any) -> bool:
    return entries()[name].device != "cuda" or gpus(torch) > 0


def _ms(seconds: float) -> str:
    milliseconds = seconds * 1e3
    if milliseconds >= 10_000:
        return f"{seconds:.1f} s"
    return f"{milliseconds:.{0 if milliseconds >= 100 else 1 if milliseconds >= 10 else 2}f} ms"
