"""What a tune prints while it runs, and at its end."""

from __future__ import annotations

import sys

from hotlap.cli.live import StatusLine
from hotlap.records.figures import number, times
from hotlap.records.trial import TrialStage
from hotlap.records.verdict import Decision, Verdict
from hotlap.records.visible import visible
from hotlap.workflows.tune.book import Activity, Watcher

WORDS = {
    TrialStage.NOISE: "the baseline against itself",
    TrialStage.ALONE: "alone",
    TrialStage.STACKED: "on top of what is kept",
    TrialStage.FINAL: "everything kept, against the baseline",
    TrialStage.LASTING: "the same over a longer run",
}
MARKS = {Decision.KEEP: "kept", Decision.REJECT: "not kept", Decision.INCONCLUSIVE: "inconclusive"}


class TuningLine(StatusLine, Watcher):
    """A live line on a terminal; elsewhere one line per verdict only."""

    def __init__(self, quiet: bool) -> None:
        super().__init__(enabled=not quiet)
        self._quiet = quiet

    def doing(self, doing: Activity) -> None:
        self.draw(text(doing))

    def judged(self, verdict: Verdict) -> None:
        self._say(verdict_line(verdict))

    def not_tried(self, entry: str, why: str) -> None:
        self._say(f"hotlap: not tried: {entry} ({why})")

    def caution(self, line: str) -> None:
        self._say(f"hotlap: {line}")

    def _say(self, line: str) -> None:
        if not self._quiet:
            self.clear()
            print(visible(line), file=sys.stderr, flush=True)


def text(doing: Activity) -> str:
    """Return the live line: what is being tried, the best so far, and the time left of the budget."""
    what = WORDS[doing.stage]
    if doing.stage in (TrialStage.ALONE, TrialStage.STACKED):
        what = f"{doing.trial.split('-', 1 if doing.stage == TrialStage.ALONE else 2)[-1]} {what}"
    best = f"best so far {times(doing.best)}" if doing.best > 1 else "nothing kept yet"
    left = f"about {clock(doing.left)} left of {clock(doing.budget)}"
    return f"hotlap: {what}, pair {doing.pair} ({doing.arm}), step {doing.step} of {doing.steps}; {best}; {left}"


def verdict_line(verdict: Verdict) -> str:
    """Return the line for a verdict, naming the speed once: a reason that already states it is not repeated."""
    if verdict.stage == TrialStage.NOISE:
        return f"hotlap: {WORDS[verdict.stage]}{_speed(verdict)}"
    name = _name(verdict)
    stage = "" if verdict.stage == TrialStage.ALONE else WORDS[verdict.stage]
    what = ", ".join(words for words in (name, stage) if words)
    if verdict.decision == Decision.KEEP and verdict.gate is not None:
        return f"hotlap: {MARKS[verdict.decision]}: {what}{_speed(verdict)}; {verdict.gate.why}"
    speed = "" if "× as fast" in verdict.why else _speed(verdict)
    return f"hotlap: {MARKS[verdict.decision]}: {what}{speed}; {verdict.why}"


def _name(verdict: Verdict) -> str:
    if verdict.entry is not None:
        return verdict.entry + ("" if verdict.value is None else f"={verdict.value}")
    if verdict.stage != TrialStage.STACKED:
        return ""
    return verdict.trial.split("-", 2)[-1].replace("+", " + ")  # several together


def _speed(verdict: Verdict) -> str:
    speed = verdict.speed
    if speed is None:
        return ""
    if speed.low is None or speed.high is None:
        return f", {speed.ratio:.2f}×"
    return f", {speed.ratio:.2f}× ({speed.low:.2f} to {speed.high:.2f})"


def clock(seconds: float) -> str:
    if seconds < 90:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{number(seconds / 3600)} h"
