"""The plan of a risk, what --with and --without make of a plan, and what is refused before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from hotlap.catalog import entries, in_conflict, name_of
from hotlap.catalog.entry import NotAValue
from hotlap.errors import UnknownOptimization
from hotlap.records.codec import SCHEMA
from hotlap.records.plan import Choice, Plan, Risk

SAFE, FAST = "safe", "fast"
WORDS = {SAFE: Risk.EXACT, FAST: Risk.ROUNDING}  # other words for a risk
RISKS = (Risk.EXACT, Risk.ROUNDING, Risk.NUMERIC)  # what changes the recipe is never automatic
TITLES = tuple(risk.value for risk in RISKS)  # of plans that nobody has proven: all that a risk allows
NOTHING = Plan(schema=SCHEMA, title="asked for", choices=())


class Changes:
    """What --with and --without make of a plan."""

    def __init__(self, with_: Sequence[str], without: Sequence[str]) -> None:
        self.asked = tuple(_asked(text) for text in with_)
        self.left_out = {name_of(text) for text in without}
        if both := self.left_out & {choice.name for choice in self.asked}:
            raise UnknownOptimization(f"{min(both)} is both in --with and in --without; leave one of them out")
        refuse_conflicts(self.asked)

    def of(self, base: Plan) -> Plan:
        """What is left of a proven plan is as proven as before; what is asked for is asked for in any case."""
        named = self.left_out | {choice.name for choice in self.asked}
        kept = [choice for choice in base.choices if choice.name not in named]
        return replace(base, choices=_ordered(_without_conflicts([*self.asked, *kept])))


def risk_of(plan: str | None, risk: Risk | None) -> Risk | None:
    """That which both mean together; None where neither names one."""
    meant = WORDS.get(plan or "")
    if meant is None or risk is None or meant is risk:
        return meant or risk
    raise UnknownOptimization(f"--plan {plan} means --risk {meant.value}, not {risk.value}; leave one of them out")


def automatic(risk: Risk) -> Plan:
    """All entries up to the risk; each finds out by itself whether it applies here."""
    allowed = [
        Choice(name=name)
        for name, entry in entries().items()
        if entry.automatic and entry.risk.rank <= risk.rank and entry.risk is not Risk.TRAINING
    ]
    return Plan(schema=SCHEMA, title=risk.value, choices=_ordered(_without_conflicts(allowed)))


def at_start(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """What of them changes how the command is started, where the rest is decided while it trains."""
    return tuple(choice for choice in choices if choice.asked)


def variables(choices: Iterable[Choice], environ: Mapping[str, str]) -> dict[str, str]:
    """What must be in the command's environment before it starts. What the user has set stays."""
    found: dict[str, str] = {}
    for choice in choices:
        entry = entries()[choice.name]
        if entry.environment is not None:
            found.update(entry.environment(entry.parse(choice.value), environ))
    return {name: value for name, value in found.items() if name not in environ}


def _asked(text: str) -> Choice:
    name, equals, value = text.partition("=")
    choice = Choice(name=name_of(name), value=value if equals else None, asked=True)
    check(choice, f"--with {text}")
    return choice


def check(choice: Choice, source: str) -> None:
    if choice.name not in entries():
        raise UnknownOptimization(f"{source} names {choice.name}, which this hotlap does not have; see: hotlap list")
    try:
        entries()[choice.name].parse(choice.value)
    except NotAValue as error:
        raise UnknownOptimization(f"{source}: {error}; see: hotlap explain {choice.name}") from error


def refuse_conflicts(asked: Iterable[Choice]) -> None:
    for choice, other in combinations(asked, 2):
        if choice.name == other.name:
            raise UnknownOptimization(f"{choice.name} is asked for twice; leave one of them out")
        if in_conflict(choice.name, other.name):
            raise UnknownOptimization(f"{choice.name} and {other.name} exclude each other; leave one of them out")


def _without_conflicts(choices: Sequence[Choice]) -> list[Choice]:
    """The first of two that exclude each other stays."""
    kept: list[Choice] = []
    for choice in choices:
        if not any(in_conflict(choice.name, earlier.name) for earlier in kept):
            kept.append(choice)
    return kept


def _ordered(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    order = list(entries())
    return tuple(sorted(choices, key=lambda choice: order.index(choice.name)))
