"""Lists what a tune tries, the most promising first, and why the rest is not tried."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.catalog import entries
from hotlap.catalog.entry import Entry, When
from hotlap.records.observation import Observation
from hotlap.records.plan import Choice, Expectation, Risk
from hotlap.records.tune_record import Candidate


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    found: tuple[Candidate, ...]  # candidates of one entry, which differ by value, are adjacent
    not_tried: tuple[tuple[str, str], ...]  # entry, why


def candidates(seen: Observation, most_risk: Risk, minimum: float) -> Candidates:
    """Return the entries that find something here, stay within the risk, and could reach the minimum effect."""
    found: list[tuple[str, Entry, Expectation]] = []
    not_tried: list[tuple[str, str]] = []
    for name, entry in entries().items():
        expected = entry.detect(seen)
        why = _why_not(entry, seen, expected, most_risk, minimum)
        if why is None and expected is not None:
            found.append((name, entry, expected))
        elif why is not None:
            not_tried.append((name, why))
    found.sort(key=lambda row: -row[2].most * row[1].reach)  # stable: equals stay in application order
    return Candidates(
        found=tuple(_candidate(*row, value) for row in found for value in _values(row[1], seen)),
        not_tried=tuple(not_tried),
    )


def _why_not(
    entry: Entry, seen: Observation, expected: Expectation | None, most_risk: Risk, minimum: float
) -> str | None:
    if entry.device == "cuda" and not seen.on_cuda:
        return "the training uses no GPU"
    if expected is None:
        return "there was nothing for it to change"
    if entry.risk is Risk.TRAINING:
        return "it changes the recipe, which a tune never does by itself"
    if entry.risk.rank > most_risk.rank:
        return f"its risk is {entry.risk}; allow it: --risk {entry.risk}"
    if expected.most < 1 - 1 / minimum:
        return f"it could save at most {expected.most:.1%} of the step, less than the smallest gain that counts"
    return None


def _values(entry: Entry, seen: Observation) -> tuple[str | None, ...]:
    """Return the values that the entry would try here; (None,) lets it find its own."""
    return (entry.tries(seen) if entry.tries is not None else ()) or (None,)


def _candidate(name: str, entry: Entry, expected: Expectation, value: str | None) -> Candidate:
    return Candidate(entry=name, code=entry.code, value=value, risk=entry.risk, most=expected.most, why=expected.why)


def is_switched(name: str) -> bool:
    """Return whether a plan includes the entry by itself and it can be switched while a program trains."""
    entry = entries()[name]
    return entry.automatic and entry.when is not When.START


def choice_of(candidate: Candidate) -> Choice:
    """Choose a candidate as if requested by name: what a plan must not do unmeasured is measured here."""
    return Choice(name=candidate.entry, value=candidate.value, asked=True)
