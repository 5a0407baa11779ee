"""What a tune tries, in the order of what each is likely to gain; and why the rest is not tried."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.catalog import entries
from hotlap.catalog.entry import Entry, When
from hotlap.records.observation import Observation
from hotlap.records.plan import Choice, Expectation, Risk
from hotlap.records.tune_record import Candidate


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    found: tuple[Candidate, ...]  # those of one entry, which differ by value, follow each other
    not_tried: tuple[tuple[str, str], ...]  # entry, why


def candidates(seen: Observation, most_risk: Risk, minimum: float) -> Candidates:
    """Of entries that find something here, allow the risk, and could be worth the minimum effect."""
    found: list[tuple[str, Entry, Expectation]] = []
    not_tried: list[tuple[str, str]] = []
    for name, entry in entries().items():
        expected = entry.detect(seen)
        why = _why_not(entry, seen, expected, most_risk, minimum)
        if why is None and expected is not None:
            found.append((name, entry, expected))
        elif why is not None:
            not_tried.append((name, why))
    found.sort(key=lambda row: -row[2].most * row[1].reach)  # stable: equal ones stay in the order they are applied in
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
        return "nothing was seen that it could change"
    if entry.risk is Risk.TRAINING:
        return "it changes the recipe, which no tune does by itself"
    if entry.risk.rank > most_risk.rank:
        return f"its risk is {entry.risk.value}; allow it: --risk {entry.risk.value}"
    if expected.most < 1 - 1 / minimum:
        return f"it could save at most {expected.most:.1%} of the step, less than the smallest gain that counts"
    return None


def _values(entry: Entry, seen: Observation) -> tuple[str | None, ...]:
    """Those the entry would try here; else it finds its own."""
    return (entry.tries(seen) if entry.tries is not None else ()) or (None,)


def _candidate(name: str, entry: Entry, expected: Expectation, value: str | None) -> Candidate:
    return Candidate(
        entry=name, code=entry.code, value=value, risk=entry.risk.value, most=expected.most, why=expected.why
    )


def is_switched(name: str) -> bool:
    """Whether it can be while a program trains, and a plan has it by itself."""
    entry = entries()[name]
    return entry.automatic and entry.when is not When.START


def choice_of(candidate: Candidate) -> Choice:
    """As if asked for by name: what a plan must not do unmeasured is measured here."""
    return Choice(name=candidate.entry, value=candidate.value, asked=True)
